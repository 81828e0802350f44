#include "kernels/primitives/upcast.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/movement/dense_memory.h"
#include "kernels/rows/block.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

// Between a tensor and a dense float32 copy of it.
class Conversion {
 public:
  Conversion(const Shape& dims, const Shape& wide, const Shape& narrow)
      : walk_(dims, {wide, narrow}) {
    walk_.sort_by(0);
  }
  void widen(float* wide, const std::byte* narrow) const {
    static const LoadFunction load = load_function(Type::kBF16, Domain::kF32);
    each([&](std::int64_t to, std::int64_t from, std::int64_t step, std::int64_t n) {
      load(wide + to, narrow + 2 * from, step, n);
    });
  }
  void narrow(std::byte* narrow, const float* wide) const {
    static const StoreFunction store = store_function(Type::kBF16, Domain::kF32);
    each([&](std::int64_t from, std::int64_t to, std::int64_t step, std::int64_t n) {
      store(narrow + 2 * to, step, wide + from, n);
    });
  }

 private:
  // piece(offset in the wide tensor, offset in the narrow one, step in the narrow one, elements)
  template <class F>
  void each(F&& piece) const {
    const std::int64_t inner = walk_.inner(), step = walk_.inner_stride(1);
    if (walk_.rows() == 1) {
      parallel_ranges(inner, inner, [&](int, std::int64_t begin, std::int64_t end) {
        piece(begin, begin * step, step, end - begin);
      });
      return;
    }
    parallel_ranges(walk_.rows(), walk_.rows() * inner,
                    [&](int, std::int64_t begin, std::int64_t end) {
                      RowCursor<2> at(walk_, begin);
                      for (std::int64_t r = begin; r < end; ++r, at.next())
                        piece(at.offset(0), at.offset(1), step, inner);
                    });
  }

  Walk walk_;
};

// The same order in memory where the tensor has no gaps and repeats nothing, else row-major.
Shape dense_strides(const sdk::TensorSpec& spec) {
  std::vector<std::size_t> order(spec.rank());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return spec.strides[a] > spec.strides[b]; });
  std::int64_t expected = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t d = order[i];
    if (spec.dims[d] == 1) continue;
    if (spec.strides[d] != expected) return sdk::row_major(spec.dims);
    expected *= spec.dims[d];
  }
  return spec.strides;
}

class UpcastKernel : public sdk::Kernel {
 public:
  struct Part {
    std::size_t index;
    std::uint64_t offset;  // of the float32 copy, in the scratch
    Conversion conversion;
  };

  UpcastKernel(std::unique_ptr<sdk::Kernel> inner, std::size_t operands, std::size_t results)
      : inner_(std::move(inner)), operand_count_(operands), result_count_(results) {
    pointers_ = plan_.take(static_cast<std::int64_t>((operands + results) * sizeof(std::byte*)));
    inner_scratch_ = plan_.take(static_cast<std::int64_t>(inner_->scratch_bytes()));
  }
  void add(bool result, std::size_t index, const sdk::TensorSpec& narrow, const Shape& wide) {
    auto& parts = result ? results_ : operands_;
    parts.push_back({index, plan_.take_floats(narrow.elements()),
                     Conversion(narrow.dims, wide, narrow.strides)});
  }

  std::uint64_t scratch_bytes() const override { return plan_.bytes(); }
  sdk::Status run(const sdk::KernelCall& call) const override {
    auto** const operands = reinterpret_cast<std::byte**>(call.scratch + pointers_);
    auto** const results = operands + operand_count_;
    std::copy_n(call.operands, operand_count_, operands);
    std::copy_n(call.results, result_count_, results);
    for (const Part& part : operands_) {
      operands[part.index] = call.scratch + part.offset;
      part.conversion.widen(reinterpret_cast<float*>(operands[part.index]),
                            call.operands[part.index]);
    }
    for (const Part& part : results_) results[part.index] = call.scratch + part.offset;
    BP_SDK_RETURN_IF_ERROR(inner_->run({operands, results, call.scratch + inner_scratch_}));
    for (const Part& part : results_)
      part.conversion.narrow(call.results[part.index],
                             reinterpret_cast<const float*>(results[part.index]));
    return {};
  }

 private:
  std::unique_ptr<sdk::Kernel> inner_;
  std::size_t operand_count_, result_count_;
  ScratchPlan plan_;
  std::uint64_t pointers_ = 0, inner_scratch_ = 0;
  std::vector<Part> operands_, results_;
};

}  // namespace

sdk::Result<std::unique_ptr<sdk::Kernel>> make_upcast_kernel(const sdk::StepContext& context,
                                                             const Factory& make) {
  std::vector<sdk::TensorSpec> wide;
  wide.reserve(context.graph().value_count());
  for (std::uint32_t v = 0; v < context.graph().value_count(); ++v) {
    wide.push_back(context.value(v));
    if (type_of(wide.back().dtype) != Type::kBF16) continue;
    wide.back().dtype = sdk::kFloat32;
    wide.back().strides = dense_strides(wide.back());
  }
  auto inner = make(sdk::StepContext(context.graph(), context.step(), wide, context.dims()));
  if (!inner.ok()) return inner.status();
  const std::vector<std::uint32_t>&operands = context.step().operands,
        &results = context.step().results;
  auto made = std::make_unique<UpcastKernel>(std::move(*inner), operands.size(), results.size());
  const auto add = [&](bool result, std::size_t index, std::uint32_t value) {
    if (value == BP_NONE) return;
    const sdk::TensorSpec& narrow = context.value(value);
    if (type_of(narrow.dtype) == Type::kBF16 && narrow.elements() != 0)
      made->add(result, index, narrow, wide[value].strides);
  };
  for (std::size_t i = 0; i < operands.size(); ++i) add(false, i, operands[i]);
  for (std::size_t i = 0; i < results.size(); ++i) add(true, i, results[i]);
  return std::unique_ptr<sdk::Kernel>(std::move(made));
}

}  // namespace backplane::onednn
