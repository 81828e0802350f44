// Reading at computed positions.
#include "gemm.hpp"
#include "positions.hpp"
#include "registry.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Op;

Status embedding(Builder& b) {  // weight, indices
  auto weight = b.operand(0), indices = b.operand(1);
  if (!weight.ok()) return weight.status();
  if (!indices.ok()) return indices.status();
  auto panels = find_panels(b, 0);
  if (!panels.ok()) return panels.status();
  const TensorView out = b.result();
  Draft d(b, out.dims);
  const Indices at(d.outer().begin(), d.outer().end() - 1);
  const Expr row = position(d, d.load(*indices, at), weight->dims[0]);
  const Expr column = d.outer().back();
  Expr value = kernelgen::kNoExpr;
  if (*panels) {
    const bool transposed = (*panels)->transposed;
    value = (*panels)->element(d, transposed ? column : row, transposed ? row : column);
  } else {
    value = d.load(*weight, {row, column});
  }
  d.store(out, d.outer(), value);
  return d.finish();
}

// self, index: `slices` of self at a 1-d index, or elements at an index of the result's shape.
Status select_along_dim(Builder& b, bool slices) {
  auto given = b.operand(0), given_index = b.operand(1);
  if (!given.ok()) return given.status();
  if (!given_index.ok()) return given_index.status();
  const TensorView self = at_least_1d(*given), index = at_least_1d(*given_index);
  const TensorView out = at_least_1d(b.result());
  Draft d(b, out.dims);
  const auto dim = static_cast<std::size_t>(wrap_dim(b.step().int_or("dim", 0), self.dims.size()));
  Indices at = d.outer();
  at[dim] = position(d, d.load(index, slices ? Indices{at[dim]} : at), self.dims[dim]);
  d.store(out, d.outer(), d.load(self, at));
  return d.finish();
}
Status index_select(Builder& b) { return select_along_dim(b, true); }
Status gather(Builder& b) { return select_along_dim(b, false); }

Status take(Builder& b) {
  auto self = b.operand(0), index = b.operand(1);
  if (!self.ok()) return self.status();
  if (!index.ok()) return index.status();
  const TensorView out = b.result();
  Draft d(b, out.dims);
  Expr flat = position(d, d.load(*index, d.outer()), product(self->dims), true);
  Indices at(self->dims.size());
  for (std::size_t i = at.size(); i-- > 0;) {
    at[i] = i == 0 ? flat : d.e().binary(Op::kMod, flat, d.index(self->dims[i]));
    flat = d.e().div(flat, d.index(self->dims[i]));
  }
  d.store(out, d.outer(), d.load(*self, at));
  return d.finish();
}

Status index_tensor(Builder& b) {
  auto self = b.operand(0);
  if (!self.ok()) return self.status();
  const TensorView out = b.result();
  const sdk::IndexedDims indexed(b.step());
  const std::size_t place = indexed.place, rank = indexed.shared.size();
  Draft d(b, out.dims);
  const Indices& axes = d.outer();
  const Indices shared(axes.begin() + static_cast<std::ptrdiff_t>(place),
                       axes.begin() + static_cast<std::ptrdiff_t>(place + rank));
  Indices at(self->dims.size());
  for (std::size_t i = 0, plain = 0; i < at.size(); ++i)
    if (!indexed.has(i)) {
      at[i] = axes[plain < place ? plain : plain + rank];
      ++plain;
    }
  BP_SDK_RETURN_IF_ERROR(positions(b, d, indexed, shared, self->dims, at));
  d.store(out, axes, d.load(*self, at));
  return d.finish();
}

// Truth values select, which depends on data.
std::optional<sdk::Refusal> refuse_index(const sdk::NodeView& node) {
  for (std::size_t i = 1; i < node.operand_count(); ++i)
    if (node.has_operand(i) &&
        (node.operand(i).dtype() == sdk::kBool || node.operand(i).dtype() == sdk::kUInt8))
      return refusal(BP_REFUSED_DTYPE, "indices by mask");
  if (node.operand(0).hint_elements() == 0)
    return refusal(BP_REFUSED_SHAPE, "a table of no elements");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.embedding", embedding, refuse_index},
    {"aten.index_select", index_select, refuse_index},
    {"aten.gather", gather, refuse_index},
    {"aten.take", take, refuse_index},
    {"aten.index.Tensor", index_tensor, refuse_index},
    {"aten._unsafe_index.Tensor", index_tensor, refuse_index},
};

}  // namespace

std::span<const KernelRow> indexing_kernels() { return kRows; }

}  // namespace backplane::kernels
