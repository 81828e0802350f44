#include "core/torch/compiler/verification.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "core/base/log.h"
#include "core/torch/bridge/dtype.h"
#include "core/torch/device/copy.h"
#include "core/torch/device/memory.h"

namespace backplane::compiler {

namespace {

constexpr std::size_t kMostSizes = 1024;
// Of integers and truths, one in so many may hang on how a number was rounded.
constexpr std::int64_t kFewIntegers = 64;

std::atomic<std::uint64_t> g_calls{0}, g_differences{0};

// What rounding may do to a result, relative to it and to the usual size of its tensor: hundreds of
// operations, sums in any order.
double tolerance_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
    case at::kComplexDouble:
      return 1e-7;
    case at::kHalf:
      return 2e-2;
    case at::kBFloat16:
      return 1e-1;
    default:
      return 1e-3;
  }
}

// Where PyTorch's own generator stands; the same numbers are drawn once more from there.
class Draws {
 public:
  Draws() : generator_(at::globalContext().defaultGenerator(at::kCPU)), before_(state()) {}
  void repeat() {
    after_ = state();
    set(before_);
  }
  void go_on() { set(after_); }

 private:
  at::Tensor state() {
    const std::lock_guard lock(generator_.mutex());
    return generator_.get_state();
  }
  void set(const at::Tensor& state) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state);
  }
  at::Generator generator_;
  at::Tensor before_, after_;
};

bool draws(const ir::Graph& graph) {
  return std::ranges::any_of(
      graph.nodes, [](const ir::Node& node) { return node.op->op_class == ir::OpClass::kRandom; });
}

at::Tensor copied_to_host(const at::Tensor& tensor) {
  if (device::is_on_device(tensor)) return device::download(tensor);
  return tensor.resolve_conj().resolve_neg().clone();
}

// Bit by bit, but for NaN.
bool is_unchanged(const at::Tensor& now, const at::Tensor& before) {
  return now.eq(before).logical_or(now.isnan().logical_and(before.isnan())).all().item<bool>();
}

std::string text_of(const at::Tensor& element) {
  std::ostringstream out;
  out.precision(9);
  out << element.item();
  return out.str();
}

}  // namespace

VerificationCounts verification_counts() {
  return {g_calls.load(std::memory_order_relaxed), g_differences.load(std::memory_order_relaxed)};
}

std::string find_difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (expected.numel() == 0) return {};
  const bool is_real = expected.is_floating_point() || expected.is_complex();
  const auto plain = [](const at::Tensor& t) {
    return (t.is_complex() ? at::view_as_real(t.contiguous()) : t.contiguous());
  };
  const at::Tensor is_now = plain(actual), was = plain(expected);
  at::Tensor wrong;
  if (is_real) {
    const at::Tensor a = is_now.to(at::kDouble), b = was.to(at::kDouble);
    const at::Tensor finite = b.isfinite();
    const at::Tensor numbers = b.where(finite, 0.0);
    const double usual = numbers.square().mean().sqrt().item<double>();
    const double tolerance = tolerance_of(expected.scalar_type());
    const at::Tensor near = (a - b).abs().le((numbers.abs() + usual) * tolerance);
    const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
    wrong = at::where(finite, near, same).logical_not();
  } else {
    wrong = is_now.ne(was);
  }
  const auto count = wrong.sum().item<std::int64_t>();
  if (count == 0) return {};
  if (!is_real && count <= std::max<std::int64_t>(expected.numel() / kFewIntegers, 1)) return {};
  const auto first = wrong.flatten().to(at::kByte).argmax().item<std::int64_t>();
  std::ostringstream out;
  out << "(" << c10::toString(expected.scalar_type()) << expected.sizes() << ") differs in "
      << count << " of " << wrong.numel() << " elements; the first, number " << first << ", is "
      << text_of(is_now.flatten()[first]) << " instead of " << text_of(was.flatten()[first]);
  return out.str();
}

const runtime::Device* Verification::find_distrusted() const {
  const auto found = std::ranges::find_if(
      devices_, [](const runtime::Device* device) { return device->is_distrusted(); });
  return found == devices_.end() ? nullptr : *found;
}

bool Verification::is_chosen(std::span<const std::int64_t> sizes) {
  const double before = static_cast<double>(calls_.fetch_add(1, std::memory_order_relaxed));
  // Call n ends a stretch of 1 / rate calls.
  if (static_cast<std::uint64_t>((before + 1) * options_.rate) !=
      static_cast<std::uint64_t>(before * options_.rate))
    return true;
  const std::lock_guard lock(mutex_);
  return known_.size() < kMostSizes && known_.emplace(sizes.begin(), sizes.end()).second;
}

Result<std::vector<at::Tensor>> Verification::by_pytorch(
    const CompiledFunction& function, std::span<const at::Tensor> given,
    std::span<const std::int64_t> sizes) const {
  std::vector<Argument> arguments;
  for (const at::Tensor& tensor : given) arguments.push_back(Argument::borrowed(tensor));
  BP_ASSIGN_OR_RETURN(std::vector<at::Tensor> results, oracle_->run(arguments, sizes));
  for (std::size_t i = 0; i < results.size(); ++i)
    if (function.torch_device_ != nullptr && function.is_output_on_device(i))
      results[i] = function.bring_back(results[i]);
  return results;
}

Result<std::vector<at::Tensor>> Verification::call(CompiledFunction& function,
                                                   std::span<Argument> arguments,
                                                   std::span<const std::int64_t> sizes) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const runtime::Device* const distrusted = find_distrusted();
  const bool draws_elsewhere = draws(function.graph().graph()) &&
                               function.torch_device_ != nullptr &&
                               !function.torch_device_->is_hidden();
  if (distrusted != nullptr && options_.strict)
    return Status(Code::kDataCorrupt,
                  distrusted->label() + " gave a wrong result before and is not asked any more");
  if (distrusted == nullptr && (!is_chosen(sizes) || draws_elsewhere))
    return function.run(arguments, sizes);

  // A plugin may write what it is to read.
  std::vector<at::Tensor> given, read;
  for (const Argument& argument : arguments) {
    given.push_back(copied_to_host(*argument));
    read.push_back(device::is_on_device(*argument) ? given.back() : *argument);
  }
  if (distrusted != nullptr) return by_pytorch(function, given, sizes);
  g_calls.fetch_add(1, std::memory_order_relaxed);
  Draws numbers;
  BP_ASSIGN_OR_RETURN(std::vector<at::Tensor> results, function.run(arguments, sizes));
  numbers.repeat();
  std::vector<Argument> again;
  for (const at::Tensor& tensor : given) again.push_back(Argument::borrowed(tensor));
  std::string difference;
  std::vector<at::Tensor> expected;
  try {
    BP_ASSIGN_OR_RETURN(expected, oracle_->run(again, sizes));
  } catch (const c10::Error& error) {
    // What PyTorch refuses, a plugin has to refuse.
    difference = "is given where PyTorch raises: " + std::string(error.what_without_backtrace());
  }
  numbers.go_on();
  const auto of_graph = [&](const char* kind, std::size_t number) {
    return kind + std::to_string(number) + " of " + function.graph().graph().name + " ";
  };
  std::string message;
  if (!difference.empty()) message = of_graph("output ", 0) + difference;
  for (std::size_t i = 0; i < expected.size() && message.empty(); ++i) {
    const at::Tensor& result = results[i];
    difference = find_difference(device::is_on_device(result) ? device::download(result) : result,
                                 expected[i]);
    if (!difference.empty()) message = of_graph("output ", i) + difference;
  }
  for (std::size_t i = 0; i < given.size() && message.empty(); ++i)
    if (!is_unchanged(read[i], given[i])) message = of_graph("input ", i) + "was written";
  if (message.empty()) return results;
  g_differences.fetch_add(1, std::memory_order_relaxed);
  for (runtime::Device* device : devices_) device->distrust(message);
  if (options_.strict)
    return Status(Code::kDataCorrupt,
                  devices_.front()->label() + " gave a wrong result: " + message);
  return by_pytorch(function, given, sizes);
}

}  // namespace backplane::compiler
