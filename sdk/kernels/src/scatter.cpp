// Writing at computed positions. One work-item walks the indices of its own columns in order: sums
// are the same in every run, and no two work-items write one element.
#include "positions.hpp"
#include "registry.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Op;
using Mode = kernelgen::Store::Mode;

// The result starts as a copy of operand 0.
Status copy_base(Builder& b) {
  auto base = b.operand(0);
  if (!base.ok()) return base.status();
  const TensorView out = b.result();
  Draft d(b, out.dims);
  d.store(out, d.outer(), d.load(*base, d.outer()));
  return d.finish();
}
Status zero_result(Builder& b) {
  const TensorView out = b.result();
  Draft d(b, out.dims);
  d.store(out, d.outer(), d.e().constant(kernelgen::compute_type(out.storage), 0));
  return d.finish();
}

Status embedding_backward(Builder& b) {  // grad, indices
  BP_SDK_RETURN_IF_ERROR(zero_result(b));
  auto grad = b.operand(0), indices = b.operand(1);
  if (!grad.ok()) return grad.status();
  if (!indices.ok()) return indices.status();
  const TensorView out = b.result();
  Draft d(b, {out.dims[1]}, indices->dims.empty() ? Shape{1} : indices->dims);
  Expressions& e = d.e();
  const Indices where = indices->dims.empty() ? Indices{} : d.loop();
  const Expr raw = d.load(*indices, where), row = position(d, raw, out.dims[0]);
  Indices at = where;
  at.push_back(d.outer()[0]);
  Expr value = d.load(*grad, at);
  const std::int64_t padding = b.step().int_or("padding_idx", -1);
  if (padding >= 0)
    value = e.select(e.binary(Op::kEq, raw, e.integer(e.type(raw), padding)),
                     e.constant(e.type(value), 0), value);
  d.store(out, {row, d.outer()[0]}, value, Mode::kAdd);
  return d.finish();
}

// self, index, source along one dim: the outer axes are the other dims.
Status along_dim(Builder& b, Mode mode, bool index_is_vector) {
  BP_SDK_RETURN_IF_ERROR(copy_base(b));
  auto index = b.operand(1);
  if (!index.ok()) return index.status();
  std::optional<TensorView> source;
  if (b.step().has_operand(2)) {
    auto view = b.operand(2);
    if (!view.ok()) return view.status();
    source = std::move(*view);
  }
  const TensorView out = at_least_1d(b.result());
  Shape walked = index_is_vector && source ? source->dims : index->dims;
  if (walked.empty()) walked.assign(1, 1);
  const auto dim = static_cast<std::size_t>(wrap_dim(b.step().int_or("dim", 0), out.dims.size()));
  Shape outer = walked;
  outer.erase(outer.begin() + static_cast<std::ptrdiff_t>(dim));
  Draft d(b, outer, {walked[dim]});
  Indices at = d.outer();
  at.insert(at.begin() + static_cast<std::ptrdiff_t>(dim), d.loop()[0]);
  const auto own = [&](const TensorView& t) { return t.dims.empty() ? Indices{} : at; };
  const Expr raw =
      d.load(*index, index_is_vector ? (index->dims.empty() ? Indices{} : Indices{d.loop()[0]})
                                     : own(*index));
  const kernelgen::Type type = kernelgen::compute_type(out.storage);
  Expr value =
      source ? d.e().cast(d.load(*source, own(*source)), type) : d.attribute("value", 0, type);
  if (b.step().node().real_or("alpha", 1) != 1)
    value = d.e().mul(value, d.attribute("alpha", 1, type));
  Indices target = at;
  target[dim] = position(d, raw, out.dims[dim]);
  d.store(out, target, value, mode);
  return d.finish();
}
Status scatter(Builder& b) { return along_dim(b, Mode::kOrdered, false); }
Status scatter_add(Builder& b) { return along_dim(b, Mode::kAdd, false); }
Status index_add(Builder& b) { return along_dim(b, Mode::kAdd, true); }
Status index_copy(Builder& b) { return along_dim(b, Mode::kOrdered, true); }

// self, indices…, values: all indexed dims are walked in one loop, the others are outer axes.
Status index_put(Builder& b) {
  BP_SDK_RETURN_IF_ERROR(copy_base(b));
  const sdk::NodeView node = b.step().node();
  const TensorView out = b.result();
  auto values = b.operand(node.list_first() + node.list_count());
  if (!values.ok()) return values.status();
  const sdk::IndexedDims indexed(b.step());
  const std::size_t rank = indexed.shared.size();
  Shape outer, walked = indexed.shared;
  for (std::size_t i = 0; i < out.dims.size(); ++i)
    if (!indexed.has(i)) outer.push_back(out.dims[i]);
  if (walked.empty()) walked.push_back(1);
  Draft d(b, outer, walked);
  const Indices shared(d.loop().begin(), d.loop().begin() + static_cast<std::ptrdiff_t>(rank));
  Indices target(out.dims.size()), whole(d.outer().begin(), d.outer().end());
  whole.insert(whole.begin() + static_cast<std::ptrdiff_t>(indexed.place), shared.begin(),
               shared.end());
  for (std::size_t i = 0, plain = 0; i < target.size(); ++i)
    if (!indexed.has(i)) target[i] = d.outer()[plain++];
  BP_SDK_RETURN_IF_ERROR(positions(b, d, indexed, shared, out.dims, target));
  const Indices at(whole.end() - static_cast<std::ptrdiff_t>(values->dims.size()), whole.end());
  d.store(out, target, d.e().cast(d.load(*values, at), kernelgen::compute_type(out.storage)),
          node.bool_or("accumulate", false) ? Mode::kAdd : Mode::kOrdered);
  return d.finish();
}

std::optional<sdk::Refusal> refuse_scatter(const sdk::NodeView& node) {
  const auto storage = *storage_of(node.result().dtype());
  if (storage == Storage::kBF16 || storage == Storage::kF16)
    return refusal(BP_REFUSED_DTYPE, "sums in halves would round at every addition");
  if (node.operand(0).hint_elements() == 0 || node.result().hint_elements() == 0)
    return refusal(BP_REFUSED_SHAPE, "a table of no elements");
  const bool put = node.op().find("index_put") != std::string_view::npos;
  for (std::size_t i = 1; i < node.operand_count(); ++i) {
    const bool index =
        put ? i >= node.list_first() && i < node.list_first() + node.list_count() : i == 1;
    if (index && node.has_operand(i) &&
        !(node.operand(i).dtype() == sdk::kInt64 || node.operand(i).dtype() == sdk::kInt32))
      return refusal(BP_REFUSED_DTYPE, "indices by mask");
  }
  if (node.bool_or("scale_grad_by_freq", false))
    return refusal(BP_REFUSED_ATTRIBUTE, "gradients scaled by frequency");
  if (storage == Storage::kBool &&
      (node.op() == "aten.scatter_add" || node.op() == "aten.index_add" || put))
    return refusal(BP_REFUSED_DTYPE, "no sums of truth values");
  const bp_attribute* value = node.attribute("value");
  if (value && value->kind == BP_ATTRIBUTE_STRING)
    return refusal(BP_REFUSED_DTYPE, "no complex numbers");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.embedding_dense_backward", embedding_backward, refuse_scatter},
    {"aten.scatter.src", scatter, refuse_scatter},
    {"aten.scatter.value", scatter, refuse_scatter},
    {"aten.scatter_add", scatter_add, refuse_scatter},
    {"aten.index_add", index_add, refuse_scatter},
    {"aten.index_copy", index_copy, refuse_scatter},
    {"aten.index_put", index_put, refuse_scatter},
    {"aten._unsafe_index_put", index_put, refuse_scatter},
};

}  // namespace

std::span<const KernelRow> scatter_kernels() { return kRows; }

}  // namespace backplane::kernels
