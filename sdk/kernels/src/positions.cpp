#include "positions.hpp"

namespace backplane::kernels {

using kernelgen::Op;

Expr position(Draft& d, Expr raw, std::int64_t size, bool wraps) {
  Expressions& e = d.e();
  const kernelgen::Type t = e.type(raw);
  Expr at = raw;
  if (wraps)
    at = e.select(e.binary(Op::kLt, raw, e.integer(t, 0)), e.add(raw, e.integer(t, size)), raw);
  d.fault_where(e.unary(Op::kNot, e.inside(at, size)));
  return e.cast(e.clamped(at, size), e.index_type());
}

Status positions(Builder& b, Draft& d, const sdk::IndexedDims& indexed, const Indices& shared,
                 const Shape& dims, Indices& at) {
  for (std::size_t i = 0; i < indexed.dims.size(); ++i) {
    auto index = b.operand(indexed.operands[i]);
    if (!index.ok()) return index.status();
    const Indices own(shared.end() - static_cast<std::ptrdiff_t>(index->dims.size()), shared.end());
    at[indexed.dims[i]] = position(d, d.load(*index, own), dims[indexed.dims[i]], true);
  }
  return {};
}

}  // namespace backplane::kernels
