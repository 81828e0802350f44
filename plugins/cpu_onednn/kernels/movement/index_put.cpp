// index_put and its accumulating form: a copy of the tensor, then one element after another in the
// order of the values, so that repeated positions add up the same way every time.
#include <backplane/sdk/indexing.hpp>

#include <array>

#include "kernels/kernel_registry.h"
#include "kernels/movement/strided_copy.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;
using sdk::TensorSpec;

template <class T>
void add_to(T& target, const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    target = target || value;
  else if constexpr (std::is_same_v<T, BFloat16>)
    target = to_bfloat16(to_float(target) + to_float(value));
  else if constexpr (std::is_same_v<T, Float16>)
    target = to_float16(to_float(target) + to_float(value));
  else
    target = static_cast<T>(target + value);
}

// One dim of the space that values run over.
struct Axis {
  std::int64_t size, target, value;  // strides; target is 0 where an index tensor decides
};

class IndexPut : public sdk::Kernel {
 public:
  explicit IndexPut(const StepContext& context)
      : copy_(context.result().dims, context.result().strides, context.operand(0).strides,
              sdk::element_bytes(context.result().dtype)),
        type_(known_type(context.result().dtype)),
        accumulate_(context.node().bool_or("accumulate", false)) {
    const sdk::NodeView node = context.node();
    const TensorSpec& self = context.result();
    values_ = node.list_first() + node.list_count();
    const sdk::IndexedDims indexed(context);
    const auto insert = [&] {
      shape_axis_ = axes_.size();
      for (const std::int64_t size : indexed.shared) axes_.push_back({size, 0, 0});
    };
    for (std::size_t d = 0; d < self.rank(); ++d) {
      if (d == indexed.place) insert();
      if (!indexed.has(d)) axes_.push_back({self.dims[d], self.strides[d], 0});
    }
    if (indexed.place >= self.rank()) insert();
    Shape space;
    for (const Axis& a : axes_) space.push_back(a.size);
    const Shape value_strides = broadcast_strides(context.operand(values_), space);
    for (std::size_t i = 0; i < axes_.size(); ++i) axes_[i].value = value_strides[i];
    for (std::size_t i = 0; i < indexed.dims.size(); ++i) {
      const std::size_t d = indexed.dims[i];
      indices_.push_back({indexed.operands[i], self.dims[d], self.strides[d],
                          broadcast_strides(context.operand(indexed.operands[i]), indexed.shared)});
    }
  }

  sdk::Status run(const KernelCall& call) const override {
    copy_.run(call.results[0], call.operands[0]);
    bool in_range = true;
    with_type(type_, [&](auto zero) {
      using T = decltype(zero);
      in_range = put(reinterpret_cast<T*>(call.results[0]),
                     reinterpret_cast<const T*>(call.operands[values_]), call);
    });
    if (!in_range) return sdk::Status(BP_INVALID_ARGUMENT, "index out of range in index_put");
    return {};
  }

 private:
  struct Index {
    std::size_t operand;
    std::int64_t size, target;  // of the dim it indexes
    Shape strides;              // over the broadcast shape
  };

  template <class T>
  bool put(T* target, const T* values, const KernelCall& call) const {
    std::array<std::int64_t, 32> at{};
    for (const Axis& a : axes_)
      if (a.size == 0) return true;
    for (;;) {
      std::int64_t to = 0, from = 0;
      for (std::size_t i = 0; i < axes_.size(); ++i) {
        to += at[i] * axes_[i].target;
        from += at[i] * axes_[i].value;
      }
      for (const Index& index : indices_) {
        std::int64_t offset = 0;
        for (std::size_t d = 0; d < index.strides.size(); ++d)
          offset += at[shape_axis_ + d] * index.strides[d];
        std::int64_t where =
            reinterpret_cast<const std::int64_t*>(call.operands[index.operand])[offset];
        if (where < 0) where += index.size;
        if (where < 0 || where >= index.size) return false;
        to += where * index.target;
      }
      if (accumulate_)
        add_to(target[to], values[from]);
      else
        target[to] = values[from];
      std::size_t d = axes_.size();
      while (d > 0 && ++at[d - 1] == axes_[d - 1].size) at[--d] = 0;
      if (d == 0) return true;
    }
  }

  StridedCopy copy_;
  Type type_;
  bool accumulate_;
  std::size_t values_ = 0, shape_axis_ = 0;
  std::vector<Axis> axes_;
  std::vector<Index> indices_;
};

MadeKernel index_put(const StepContext& context) {
  if (context.result().elements() == 0) return make_kernel([](const KernelCall&) {});
  return std::unique_ptr<sdk::Kernel>(std::make_unique<IndexPut>(context));
}

std::optional<sdk::Refusal> refuse_index_put(const sdk::NodeView& node) {
  for (std::size_t i = 0; i < node.list_count(); ++i)
    if (node.has_operand(node.list_first() + i) &&
        type_of(node.operand(node.list_first() + i).dtype()) != Type::kI64)
      return refusal(BP_REFUSED_DTYPE, "indices of int64 only");
  const std::size_t values = node.list_first() + node.list_count();
  if (type_of(node.operand(values).dtype()) != type_of(node.result().dtype()))
    return refusal(BP_REFUSED_DTYPE, "values of the tensor's own type only");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.index_put", index_put, refuse_index_put},
    {"aten._unsafe_index_put", index_put, refuse_index_put},
};

}  // namespace

KernelRows index_put_kernels() { return kRows; }

}  // namespace backplane::onednn
