#include "point_group.hpp"

#include <backplane/kernelgen/operators.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace backplane::kernels {
namespace {

using kernelgen::Operator;
using sdk::NodeView;

// The dims that rows are taken from: of a fold, what its operands are broadcast to (losses have
// two).
std::vector<bp_dim> dims_of_rows(const NodeView& node, const Operator& op) {
  const auto first = node.operand(0).dims();
  std::vector<bp_dim> dims(first.begin(), first.end());
  if (op.kind != Operator::kFold) return dims;
  for (std::size_t i = 1; i < node.operand_count(); ++i) {
    if (!node.has_operand(i)) continue;
    const auto other = node.operand(i).dims();
    if (other.size() > dims.size()) dims.insert(dims.begin(), other.size() - dims.size(), 1);
    for (std::size_t d = 0; d < other.size(); ++d) {
      bp_dim& dim = dims[dims.size() - other.size() + d];
      if (dim == 1) dim = other[d];
    }
  }
  return dims;
}

// Those of `rank` dims that a row operator's rows are made of, ascending.
std::vector<std::size_t> row_dims(const NodeView& node, std::size_t rank) {
  const std::string_view op = node.op();
  std::vector<std::size_t> dims;
  if (rank == 0) return dims;
  if (op.starts_with("aten.native_layer_norm") || op == "aten._fused_rms_norm") {
    const bp_attribute* shape = node.attribute("normalized_shape");
    const std::size_t count = shape ? shape->count : 1;
    for (std::size_t d = rank - std::min(count, rank); d < rank; ++d) dims.push_back(d);
  } else if (const bp_attribute* dim = node.attribute("dim")) {
    if (dim->kind == BP_ATTRIBUTE_INTS) {
      for (std::size_t i = 0; i < dim->count; ++i)
        dims.push_back(static_cast<std::size_t>(wrap_dim(dim->integers[i], rank)));
    } else {
      dims.push_back(static_cast<std::size_t>(wrap_dim(dim->integer, rank)));
    }
  }
  if (dims.empty())
    for (std::size_t d = 0; d < rank; ++d) dims.push_back(d);
  std::sort(dims.begin(), dims.end());
  return dims;
}
bool is_row_op(const Operator& op) {
  return op.kind == Operator::kRow || op.kind == Operator::kFold;
}

// Strides of a value along the dims of the group: 0 where it is broadcast. A fold that dropped its
// dims lines up with the others.
Shape aligned_strides(const Shape& dims, const Shape& strides, const Shape& wide,
                      const std::vector<bool>& is_row, bool dropped) {
  Shape out(wide.size(), 0);
  if (dropped) {
    for (std::size_t d = 0, k = 0; d < wide.size() && k < dims.size(); ++d)
      if (!is_row[d]) out[d] = dims[k] == 1 ? 0 : strides[k], ++k;
    return out;
  }
  const std::size_t missing = wide.size() - std::min(wide.size(), dims.size());
  for (std::size_t d = missing; d < wide.size(); ++d) {
    const std::size_t k = d - missing;
    out[d] = dims[k] == 1 ? 0 : strides[k];
  }
  return out;
}

struct Access {
  TensorView view;
  Shape strides;  // along the dims of the group, then along its axes
};

class Lowering {
 public:
  explicit Lowering(Builder& builder)
      : builder_(builder),
        step_(builder.step()),
        rounded_(sdk::rounded_values(step_.graph(), step_.step())) {}

  Status run();
  Status run_epilogue(Draft& draft, std::span<const std::uint32_t> nodes, std::uint32_t value,
                      Expr external, const Indices& axes);

 private:
  friend class Source;
  Status find_space();
  Status find_accesses();
  Shape strides_of(std::uint32_t value, const TensorView& view) const;
  Indices merge_last(Draft& draft, Indices axes);
  void choose_axes();
  void emit(Draft& draft, std::uint32_t n);
  void store(Draft& draft, std::uint32_t value, const Access& access);
  Expr value(Draft& draft, std::uint32_t index);
  bool dropped(std::uint32_t value) const {
    return std::find(dropped_.begin(), dropped_.end(), value) != dropped_.end();
  }

  Builder& builder_;
  const sdk::StepContext& step_;
  std::set<std::uint32_t> rounded_;               // read with their own type's digits
  std::vector<std::uint32_t> nodes_;              // of the step that compute
  std::map<std::uint32_t, std::uint32_t> joins_;  // by result: the nodes that join tensors
  Shape wide_;
  std::vector<bool> is_row_;
  std::vector<std::uint32_t> dropped_;                  // results of folds without their dims
  std::map<std::uint32_t, Access> inputs_, outputs_;    // by value
  std::vector<std::vector<std::size_t>> outer_, loop_;  // dims of each axis
  std::map<std::uint32_t, Expr> values_;
  const Indices* epilogue_axes_ = nullptr;
};

class Source final : public kernelgen::OperatorSource {
 public:
  Source(Lowering& lowering, Draft& draft, const NodeView& node)
      : lowering_(lowering), draft_(draft), node_(node) {}
  bool has(std::size_t i) const override { return node_.has_operand(i); }
  Expr operand(std::size_t i) override {
    const std::uint32_t v = node_.operand_index(i);
    const Expr read = lowering_.value(draft_, v);
    return lowering_.rounded_.contains(v) ? draft_.e().narrow(read, operand_storage(i)) : read;
  }
  Storage operand_storage(std::size_t i) const override {
    return *storage_of(node_.operand(i).dtype());
  }
  std::int64_t operand_elements(std::size_t i) const override {
    return lowering_.step_.value(node_.operand_index(i)).elements();
  }
  Storage result_storage(std::size_t i) const override {
    return *storage_of(node_.result(i).dtype());
  }
  std::optional<kernelgen::Number> number(std::string_view name) const override {
    const bp_attribute* a = node_.attribute(name);
    if (a == nullptr) return std::nullopt;
    if (a->kind == BP_ATTRIBUTE_FLOAT) return kernelgen::Number{true, a->real, 0};
    return kernelgen::Number{false, 0, lowering_.step_.dims().attribute(node_, name, 0)};
  }
  std::string_view text(std::string_view name) const override { return node_.text_or(name, ""); }
  std::int64_t row_length() const override {
    std::int64_t n = 1;
    for (std::size_t d = 0; d < lowering_.wide_.size(); ++d)
      if (lowering_.is_row_[d]) n *= lowering_.wide_[d];
    return n;
  }

 private:
  Lowering& lowering_;
  Draft& draft_;
  const NodeView& node_;
};

Status Lowering::find_space() {
  sdk::PointSpace space;
  for (const std::uint32_t n : nodes_) {
    const sdk::PointSpace one = space_of(step_.node_at(n));
    if (one.has_rows || space.wide.empty()) {
      if (!space.has_rows) space = one;
    }
  }
  wide_ = step_.dims()(std::span<const bp_dim>(space.wide));
  is_row_.assign(wide_.size(), false);
  for (const std::size_t d : space.rows) is_row_[d] = true;
  for (const std::uint32_t n : nodes_) {
    const NodeView node = step_.node_at(n);
    if (kernelgen::find_operator(node.op())->kind != Operator::kFold) continue;
    for (std::size_t r = 0; r < node.result_count(); ++r)
      if (node.result_index(r) != BP_NONE && node.result(r).rank() != wide_.size())
        dropped_.push_back(node.result_index(r));
  }
  return {};
}

Status Lowering::find_accesses() {
  const sdk::Step& step = step_.step();
  for (std::size_t i = 0; i < step.operands.size(); ++i) {
    const std::uint32_t v = step.operands[i];
    if (v == BP_NONE || inputs_.contains(v)) continue;
    auto view = builder_.operand(i);
    if (!view.ok()) return view.status();
    Shape strides = strides_of(v, *view);
    inputs_.emplace(v, Access{std::move(*view), std::move(strides)});
  }
  for (std::size_t i = 0; i < step.results.size(); ++i) {
    const std::uint32_t v = step.results[i];
    if (!builder_.wants(i)) continue;
    TensorView view = builder_.result(i);
    Shape strides = aligned_strides(view.dims, view.strides, wide_, is_row_, dropped(v));
    outputs_.emplace(v, Access{std::move(view), std::move(strides)});
  }
  return {};
}

Shape Lowering::strides_of(std::uint32_t value, const TensorView& view) const {
  for (const std::uint32_t n : step_.step().nodes) {
    const NodeView node = step_.node_at(n);
    for (std::size_t i = 0; i < node.operand_count(); ++i) {
      if (!node.has_operand(i) || node.operand_index(i) != value || !is_channel_operand(node, i))
        continue;
      Shape strides(wide_.size(), 0);
      if (view.dims[0] != 1) strides[1] = view.strides[0];
      return strides;
    }
  }
  return aligned_strides(view.dims, view.strides, wide_, is_row_, false);
}

// Axes for all dims, or accesses for fewer: where every tensor lies so that the last axis may run
// over the dims that have none.
Indices Lowering::merge_last(Draft& draft, Indices axes) {
  const std::size_t first = axes.size() - 1;
  bool alike = true;
  const auto step_of = [&](const Shape& strides) {
    std::int64_t step = 0, expected = -1;
    for (std::size_t d = wide_.size(); d-- > first;) {
      if (wide_[d] == 1) continue;
      if (expected < 0) step = strides[d];
      alike = alike && (expected < 0 || strides[d] == expected);
      expected = strides[d] * wide_[d];
    }
    return step;
  };
  for (auto* accesses : {&inputs_, &outputs_})
    for (auto& [v, access] : *accesses) static_cast<void>(step_of(access.strides));
  if (alike) {
    for (auto* accesses : {&inputs_, &outputs_})
      for (auto& [v, access] : *accesses) {
        access.strides[first] = step_of(access.strides);
        access.strides.resize(first + 1);
      }
    return axes;
  }
  Expr flat = axes.back();
  axes.resize(wide_.size());
  for (std::size_t d = wide_.size(); d-- > first;) {
    axes[d] =
        d == first ? flat : draft.e().binary(kernelgen::Op::kMod, flat, draft.index(wide_[d]));
    flat = draft.e().div(flat, draft.index(wide_[d]));
  }
  return axes;
}

// Dims that lie in memory like one become one axis.
void Lowering::choose_axes() {
  std::vector<std::size_t> outer, loop;
  for (std::size_t d = 0; d < wide_.size(); ++d) {
    if (wide_[d] == 1) continue;
    (is_row_[d] ? loop : outer).push_back(d);
  }
  if (!outputs_.empty()) {  // in the order of the first result's memory
    const Shape& strides = outputs_.begin()->second.strides;
    std::stable_sort(outer.begin(), outer.end(),
                     [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  }
  const auto one_axis = [&](std::size_t a, std::size_t b) {
    for (const auto* accesses : {&inputs_, &outputs_})
      for (const auto& [v, access] : *accesses)
        if (access.strides[a] != access.strides[b] * wide_[b]) return false;
    return true;
  };
  for (const bool rows : {false, true}) {
    auto& axes = rows ? loop_ : outer_;
    for (const std::size_t d : rows ? loop : outer) {
      if (!axes.empty() && one_axis(axes.back().back(), d))
        axes.back().push_back(d);
      else
        axes.push_back({d});
    }
  }
  for (auto* accesses : {&inputs_, &outputs_})
    for (auto& [v, access] : *accesses) {
      Shape strides;
      for (const auto* axes : {&outer_, &loop_})
        for (const auto& axis : *axes) strides.push_back(access.strides[axis.back()]);
      access.strides = std::move(strides);
    }
}

Expr Lowering::value(Draft& draft, std::uint32_t index) {
  if (const auto known = values_.find(index); known != values_.end()) return known->second;
  const Access& access = inputs_.at(index);
  Indices all;
  if (epilogue_axes_ != nullptr) {
    all = *epilogue_axes_;
  } else {
    all = draft.outer();
    all.insert(all.end(), draft.loop().begin(), draft.loop().end());
  }
  const Expr loaded = draft.load_at(access.view, draft.e().offset(all, access.strides));
  return values_[index] = loaded;
}

void Lowering::emit(Draft& draft, std::uint32_t n) {
  const NodeView node = step_.node_at(n);
  Source source(*this, draft, node);
  const std::vector<Expr> results = kernelgen::find_operator(node.op())->emit(draft.e(), source);
  for (std::size_t r = 0; r < results.size() && r < node.result_count(); ++r)
    if (results[r] != kernelgen::kNoExpr && node.result_index(r) != BP_NONE &&
        storage_of(node.result(r).dtype()))
      values_[node.result_index(r)] =
          draft.e().cast(results[r], kernelgen::compute_type(*storage_of(node.result(r).dtype())));
}

// At the axes' point; of joined tensors, each in its place.
void Lowering::store(Draft& draft, std::uint32_t value, const Access& access) {
  Indices at = draft.outer();
  at.insert(at.end(), draft.loop().begin(), draft.loop().end());
  TensorView flat = access.view;
  flat.strides = access.strides;
  const auto join = joins_.find(value);
  if (join == joins_.end()) {
    const auto found = values_.find(value);
    if (found == values_.end()) return;
    flat.dims.assign(flat.strides.size(), 2);  // indices are the axes': none is of size 1
    return draft.store(flat, at, found->second);
  }
  const NodeView node = step_.node_at(join->second);
  const std::size_t dim = wrap_dim(node.int_or("dim", 0), wide_.size());
  flat.strides.push_back(access.view.strides[dim] * wide_[dim]);
  flat.dims.assign(flat.strides.size(), 2);
  at.push_back(kernelgen::kNoExpr);
  for (std::size_t i = 0; i < node.list_count(); ++i) {
    at.back() = draft.index(static_cast<std::int64_t>(i));
    const std::uint32_t part = node.operand_index(node.list_first() + i);
    draft.store(flat, at, this->value(draft, part));
  }
}

Status Lowering::run() {
  for (const std::uint32_t n : step_.step().nodes) {
    const NodeView node = step_.node_at(n);
    if (joins_points(node))
      joins_[node.result_index()] = n;
    else
      nodes_.push_back(n);
  }
  BP_SDK_RETURN_IF_ERROR(find_space());
  BP_SDK_RETURN_IF_ERROR(find_accesses());
  choose_axes();
  const auto extents = [&](const std::vector<std::vector<std::size_t>>& axes) {
    Shape out;
    for (const auto& axis : axes) {
      out.push_back(1);
      for (const std::size_t d : axis) out.back() *= wide_[d];
    }
    return out;
  };
  Shape loop = extents(loop_);
  // A row of one element still reduces.
  const bool has_rows = std::find(is_row_.begin(), is_row_.end(), true) != is_row_.end();
  bool reduces = has_rows;
  for (const std::uint32_t n : nodes_)
    reduces = reduces || is_row_op(*kernelgen::find_operator(step_.node_at(n).op()));
  if (reduces && loop.empty()) {
    loop.push_back(1);
    for (auto* accesses : {&inputs_, &outputs_})
      for (auto& [v, access] : *accesses) access.strides.push_back(0);
  }
  Draft draft(builder_, extents(outer_), loop);
  for (const std::uint32_t n : nodes_) emit(draft, n);
  for (const auto& [v, access] : outputs_)
    if (step_.value(v).elements() != 0) store(draft, v, access);
  return draft.finish();
}

Status Lowering::run_epilogue(Draft& draft, std::span<const std::uint32_t> nodes,
                              std::uint32_t product, Expr external, const Indices& given) {
  wide_ = step_.value(product).dims;
  is_row_.assign(wide_.size(), false);
  BP_SDK_RETURN_IF_ERROR(find_accesses());
  const Indices axes = given.size() < wide_.size() ? merge_last(draft, given) : given;
  epilogue_axes_ = &axes;
  values_[product] = external;
  for (const std::uint32_t n : nodes) emit(draft, n);
  for (const auto& [v, access] : outputs_) {
    TensorView flat = access.view;
    flat.strides = access.strides;
    flat.dims.assign(flat.strides.size(), 2);
    draft.store(flat, axes, values_.at(v));
  }
  return {};
}

}  // namespace

bool is_channel_operand(const NodeView& node, std::size_t i) {
  const Operator* op = kernelgen::find_operator(node.op());
  return op != nullptr && op->kind == Operator::kChannel && i != 0;
}

bool is_point_op(const NodeView& node) {
  // Gradients of weight and bias sum over the other dims.
  return node.op() != "aten.native_layer_norm_backward" &&
         kernelgen::find_operator(node.op()) != nullptr;
}

bool joins_points(const NodeView& node) {
  if (node.op() != "aten.cat" || node.list_count() < 2) return false;
  const sdk::ValueView first = node.operand(node.list_first());
  const bp_attribute* dim = node.attribute("dim");
  if (!storage_of(first.dtype()) || first.rank() == 0 || (dim && dim->kind != BP_ATTRIBUTE_INT))
    return false;
  for (std::size_t i = 0; i < node.list_count(); ++i) {
    const sdk::ValueView part = node.operand(node.list_first() + i);
    if (!(part.dtype() == node.result().dtype()) || !std::ranges::equal(part.dims(), first.dims()))
      return false;
  }
  return true;
}

sdk::PointSpace space_of(const NodeView& node) {
  sdk::PointSpace s;
  const Operator& op = *kernelgen::find_operator(node.op());
  if (is_row_op(op)) {
    s.wide = dims_of_rows(node, op);
    s.rows = row_dims(node, s.wide.size());
    s.has_rows = true;
    return s;
  }
  const auto dims = node.result().dims();
  s.wide.assign(dims.begin(), dims.end());
  return s;
}

std::optional<sdk::Refusal> refuse_point_op(const NodeView& node) {
  const auto no = [](bp_refusal reason, std::string text) {
    return sdk::Refusal{0, reason, std::move(text)};
  };
  const Operator& op = *kernelgen::find_operator(node.op());
  const std::string_view name = node.op();
  if (auto refused = sdk::refuse_points(node, op.kind == Operator::kFloatsOnly)) return refused;
  const bool float_result = kernelgen::is_float(*storage_of(node.result().dtype()));
  if (op.kind == Operator::kChannel) {
    if (!float_result) return no(BP_REFUSED_DTYPE, "floating point results only");
    if (node.operand(0).rank() < 2) return no(BP_REFUSED_SHAPE, "needs a dim of channels");
    for (const std::size_t i : {3, 4})
      if (!node.has_operand(i) || node.operand(i).rank() != 1)
        return no(BP_REFUSED_ATTRIBUTE, "statistics are missing");
  }
  if (is_row_op(op)) {
    const std::size_t rank = dims_of_rows(node, op).size();
    std::size_t last = SIZE_MAX;
    for (const std::size_t d : row_dims(node, rank)) {
      if (d >= std::max<std::size_t>(rank, 1))
        return no(BP_REFUSED_ATTRIBUTE, "a dim out of range");
      if (d == last) return no(BP_REFUSED_ATTRIBUTE, "a dim twice");
      last = d;
    }
    const bool sums = name == "aten.sum" || name == "aten.sum.dim_IntList" ||
                      name.starts_with("aten.prod") || name.starts_with("aten.a") ||
                      name.starts_with("aten.max") || name.starts_with("aten.min");
    if (!sums && !float_result) return no(BP_REFUSED_DTYPE, "floating point results only");
    if ((name == "aten.mse_loss" || name == "aten.l1_loss") && node.int_or("reduction", 1) == 0)
      return no(BP_REFUSED_ATTRIBUTE, "losses with a reduction only");
    const bool extreme = name.starts_with("aten.max") || name.starts_with("aten.min") ||
                         name.starts_with("aten.arg") || name == "aten.amax" || name == "aten.amin";
    if (extreme && node.operand(0).hint_elements() == 0)
      return no(BP_REFUSED_SHAPE, "the extreme of nothing");
  }
  return std::nullopt;
}

Status add_points(Builder& builder) { return Lowering(builder).run(); }

Result<std::unique_ptr<sdk::Kernel>> make_point_group(Builder& builder) {
  BP_SDK_RETURN_IF_ERROR(add_points(builder));
  return std::unique_ptr<sdk::Kernel>(builder.take());
}

Result<std::unique_ptr<sdk::Kernel>> make_copy(Builder& builder) {
  auto in = builder.operand(0);
  if (!in.ok()) return in.status();
  BP_SDK_RETURN_IF_ERROR(copy_elements(builder, std::move(*in), builder.result()));
  return std::unique_ptr<sdk::Kernel>(builder.take());
}

Status emit_epilogue(Builder& builder, Draft& draft, std::span<const std::uint32_t> nodes,
                     std::uint32_t product_value, Expr external, const Indices& axes) {
  Lowering lowering(builder);
  return lowering.run_epilogue(draft, nodes, product_value, external, axes);
}

}  // namespace backplane::kernels
