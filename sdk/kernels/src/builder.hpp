// What the kernels of one step are built with.
#pragma once

#include <backplane/kernelgen/kernel.hpp>
#include <backplane/sdk/program.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "families.hpp"
#include "launch.hpp"
#include "sharing.hpp"

namespace backplane::kernels {

using kernelgen::Expr;
using kernelgen::Expressions;
using kernelgen::Storage;
using sdk::TensorSpec;
using Shape = std::vector<std::int64_t>;
using Indices = std::vector<Expr>;

std::optional<Storage> storage_of(bp_dtype dtype);
std::int64_t product(const Shape& dims);
using sdk::wrap_dim;
bool is_absent(const sdk::ValueView& v);  // a result nobody asked for

// A tensor as a kernel reads or writes it: where it lies, and how.
struct TensorView {
  Argument argument;
  Storage storage = Storage::kF32;
  Shape dims, strides;
};

// A 0-d tensor is one element.
inline TensorView at_least_1d(TensorView tensor) {
  if (tensor.dims.empty())
    for (Shape* s : {&tensor.dims, &tensor.strides}) s->assign(1, 1);
  return tensor;
}

class Builder {
 public:
  // `families`: of an executable whose sizes may change; else null. `shared`: where launches wait
  // for their programs; null: they have them at once.
  Builder(Target& target, const sdk::StepContext& step, KernelFamilies* families = nullptr,
          SharedKernels* shared = nullptr);

  const sdk::StepContext& step() const { return step_; }
  Target& target() const { return target_; }
  const Facts& facts() const { return target_.facts(); }
  const kernelgen::Schedule& schedule() const { return schedule_; }
  const std::string& label() const { return label_; }
  LaunchList& launches() { return *launches_; }
  std::unique_ptr<LaunchList> take() { return std::move(launches_); }

  // Operand or result i of the step.
  Result<TensorView> operand(std::size_t i);
  TensorView result(std::size_t i = 0) const;
  bool wants(std::size_t result) const;
  // Dense memory of this call.
  TensorView scratch(Storage storage, Shape dims);

  // Launches a printed kernel.
  void launch(const kernelgen::Printed& kernel, std::vector<Argument> arguments, Extent items,
              Extent group = {1, 1, 1});
  Status fill_zero(const TensorView& dense);

 private:
  Target& target_;
  const sdk::StepContext& step_;
  kernelgen::Schedule schedule_;
  KernelFamilies* families_;
  SharedKernels* shared_;
  std::uint64_t place_ = 0;  // of the next launch in the executable
  std::string label_;
  std::unique_ptr<LaunchList> launches_;
};

// One kernelgen kernel in the making. Axes: the outer ones, then the loop axes.
class Draft {
 public:
  Draft(Builder& builder, const Shape& outer, const Shape& loop = {}, bool wide_index = false);

  Expressions& e() { return kernel_.expressions; }
  const Indices& outer() const { return outer_; }
  const Indices& loop() const { return loop_; }
  Expr index(std::int64_t v) { return e().index(v); }
  // The number in the attribute of the step's first node: whole ones keep all their digits.
  Expr attribute(std::string_view name, double fallback, kernelgen::Type type);

  // Element of a tensor; dims of size 1 take index 0.
  Expr load(const TensorView& tensor, const Indices& index);
  Expr load_at(const TensorView& tensor, Expr offset);
  void store(const TensorView& tensor, const Indices& index, Expr value,
             kernelgen::Store::Mode mode = kernelgen::Store::kPlain);
  // Says so to the caller where `wrong` is true at any point: the call fails when it is done.
  void fault_where(Expr wrong);
  Status finish();  // prints and adds the launch

  const kernelgen::Kernel& kernel() const { return kernel_; }
  kernelgen::Dialect dialect() const { return builder_.facts().dialect; }
  std::vector<Argument> arguments() const;

 private:
  std::size_t tensor(const TensorView& view);
  void launch(const kernelgen::Kernel& kernel, std::vector<Argument> arguments);
  Expr offset(const TensorView& tensor, const Indices& index);

  Builder& builder_;
  kernelgen::Kernel kernel_;
  std::vector<Argument> tensors_, values_;
  Indices outer_, loop_;
  Expr wrong_ = kernelgen::kNoExpr;
};

// The elements of one tensor in another of the same dims.
Status copy_elements(Builder& builder, TensorView from, TensorView to);

}  // namespace backplane::kernels
