#include "core/torch/compiler/verification.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "core/base/log.h"
#include "core/torch/bridge/dtype.h"
#include "core/torch/compiler/draws.h"
#include "core/torch/device/copy.h"
#include "core/torch/device/memory.h"

namespace backplane::compiler {

namespace {

constexpr std::size_t kMostSizes = 1024;
constexpr int kDisturbedRuns = 4;
constexpr double kUlps = 2;  // by how much each input is disturbed
// How many times as far off as a disturbance of its inputs a result may be.
constexpr double kFactor = 24;

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

// The unit of rounding of the shortest type that the graph computes in.
double rounding_of(const ir::Graph& graph) {
  double largest = std::numeric_limits<double>::epsilon();
  for (const ir::Value& value : graph.values) {
    if (!ir::is_float(value.type.dtype) && !ir::is_complex(value.type.dtype)) continue;
    const at::ScalarType type = c10::toRealValueType(bridge::to_scalar_type(value.type.dtype));
    const double own = type == at::kDouble     ? std::numeric_limits<double>::epsilon()
                       : type == at::kHalf     ? 0x1p-10
                       : type == at::kBFloat16 ? 0x1p-7
                                               : std::numeric_limits<float>::epsilon();
    largest = std::max(largest, own);
  }
  return largest;
}

bool draws(const ir::Graph& graph) {
  return std::ranges::any_of(
      graph.nodes, [](const ir::Node& node) { return node.op->op_class == ir::OpClass::kRandom; });
}

at::Tensor copied_to_host(const at::Tensor& tensor) {
  if (device::is_resident(tensor)) return device::download(tensor);
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

std::string find_difference(const at::Tensor& actual, const at::Tensor& expected,
                            std::span<const at::Tensor> disturbed) {
  if (expected.numel() == 0) return {};
  const auto plain = [](const at::Tensor& t) {
    return t.is_complex() ? at::view_as_real(t.contiguous()) : t.contiguous();
  };
  const at::Tensor is_now = plain(actual), was = plain(expected);
  at::Tensor wrong;
  if (was.is_floating_point()) {
    const at::Tensor a = is_now.to(at::kDouble), b = was.to(at::kDouble);
    const at::Tensor finite = b.isfinite();
    const auto same_as_expected = [&](const at::Tensor& x) {
      return x.eq(b).logical_or(x.isnan().logical_and(b.isnan()));
    };
    at::Tensor off = at::zeros_like(b), is_stable = at::ones_like(finite);
    for (const at::Tensor& run : disturbed) {
      const at::Tensor other = plain(run).to(at::kDouble);
      off = at::maximum(off, (other - b).abs().nan_to_num(0.0, 0.0, 0.0));
      is_stable.logical_and_(at::where(finite, other.isfinite(), same_as_expected(other)));
    }
    const at::Tensor numbers = b.where(finite, 0.0);
    const double usual = numbers.square().mean().sqrt().item<double>();
    const at::Tensor allowed = (numbers.abs() + usual) * tolerance_of(expected.scalar_type()) +
                               (at::maximum(off, off.mean()) * kFactor);
    const at::Tensor near = at::where(finite, (a - b).abs().le(allowed), same_as_expected(a));
    wrong = near.logical_not().logical_and(is_stable);
  } else {
    wrong = is_now.ne(was);
    for (const at::Tensor& run : disturbed) wrong.logical_and_(plain(run).eq(was));
  }
  const auto count = wrong.sum().item<std::int64_t>();
  if (count == 0) return {};
  const auto first = wrong.flatten().to(at::kByte).argmax().item<std::int64_t>();
  std::ostringstream out;
  out << "(" << c10::toString(expected.scalar_type()) << expected.sizes() << ") differs in "
      << count << " of " << wrong.numel() << " elements; the first, number " << first << ", is "
      << text_of(is_now.flatten()[first]) << " instead of " << text_of(was.flatten()[first]);
  return out.str();
}

Verification::Verification(VerifyOptions options, std::unique_ptr<CompiledFunction> oracle,
                           std::vector<runtime::Device*> devices)
    : options_(options),
      oracle_(std::move(oracle)),
      devices_(std::move(devices)),
      draws_(draws(oracle_->graph().graph())) {}

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

std::vector<std::vector<at::Tensor>> Verification::disturbed_runs(
    std::span<const at::Tensor> given, std::span<const std::int64_t> sizes,
    const std::function<void()>& before_each) {
  const double step = kUlps * rounding_of(oracle_->graph().graph());
  std::vector<std::vector<at::Tensor>> out;
  for (int run = 0; run < kDisturbedRuns; ++run) {
    at::Generator noise = at::detail::createCPUGenerator(static_cast<std::uint64_t>(run));
    std::vector<Argument> arguments;
    for (const at::Tensor& tensor : given) {
      if (!tensor.is_floating_point()) {
        arguments.push_back(Argument::borrowed(tensor));
        continue;
      }
      const at::Tensor draw = at::empty(tensor.sizes(), at::kDouble).uniform_(-1, 1, noise);
      at::Tensor changed = tensor.clone();
      if (changed.is_non_overlapping_and_dense()) changed.copy_(tensor * (draw * step + 1));
      arguments.push_back(Argument::owned(std::move(changed)));
    }
    before_each();
    try {
      Result<std::vector<at::Tensor>> results = oracle_->run(arguments, sizes);
      if (results.ok()) out.push_back(std::move(*results));
    } catch (const c10::Error&) {
      continue;  // a number that PyTorch refuses, beside one that it takes
    }
  }
  return out;
}

// What PyTorch computed on the host, where the function's results are.
std::vector<at::Tensor> Verification::at_home(const CompiledFunction& function,
                                              std::vector<at::Tensor> results) {
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
  const bool draws_elsewhere =
      draws_ && function.torch_device_ != nullptr && function.torch_device_->has_generator();
  if (distrusted != nullptr && options_.strict)
    return Status(Code::kDataCorrupt,
                  distrusted->label() + " gave a wrong result before and is not asked any more");
  if (distrusted == nullptr && (!is_chosen(sizes) || draws_elsewhere))
    return function.run(arguments, sizes);

  // A plugin may write what it is to read.
  std::vector<at::Tensor> given, read;
  for (const Argument& argument : arguments) {
    given.push_back(copied_to_host(*argument));
    read.push_back(device::is_resident(*argument) ? given.back() : *argument);
  }
  if (distrusted != nullptr) {
    std::vector<Argument> instead;
    for (const at::Tensor& tensor : given) instead.push_back(Argument::borrowed(tensor));
    BP_ASSIGN_OR_RETURN(std::vector<at::Tensor> results, oracle_->run(instead, sizes));
    return at_home(function, std::move(results));
  }
  g_calls.fetch_add(1, std::memory_order_relaxed);
  Draws numbers(at::globalContext().defaultGenerator(at::kCPU));
  BP_ASSIGN_OR_RETURN(const auto plan, function.plan(arguments, sizes));
  BP_ASSIGN_OR_RETURN(std::vector<at::Tensor> results, function.run(arguments, sizes));
  numbers.repeat();
  std::vector<at::Tensor> expected;
  std::string message;
  std::exception_ptr thrown;
  try {
    std::vector<Argument> again;
    for (const at::Tensor& tensor : given) again.push_back(Argument::borrowed(tensor));
    BP_ASSIGN_OR_RETURN(expected, oracle_->run(again, sizes));
    message = compare(results, expected, given, sizes, [&] { numbers.go_back(); });
  } catch (const c10::Error& error) {  // what PyTorch refuses, a plugin has to refuse
    thrown = std::current_exception();
    message = "a result where PyTorch raises: " + std::string(error.what_without_backtrace());
  }
  numbers.go_on();
  for (std::size_t i = 0; i < given.size() && message.empty(); ++i)
    if (!is_unchanged(read[i], given[i])) message = "input " + std::to_string(i) + " was written";
  if (message.empty()) return results;
  g_differences.fetch_add(1, std::memory_order_relaxed);
  message += ", in " + function.graph().graph().name;
  std::string again;
  for (std::size_t i = 0; i < function.graph().partition_count(); ++i)
    again += function.graph().keep_for_replay(i, plan->graph->class_values, message);
  message += again;
  for (runtime::Device* device : devices_) device->distrust(message);
  if (options_.strict)
    return Status(Code::kDataCorrupt,
                  devices_.front()->label() + " gave a wrong result: " + message);
  if (thrown) std::rethrow_exception(thrown);
  return at_home(function, std::move(expected));
}

// Empty where all are as PyTorch's. Rounding that explains a difference is measured where one is.
std::string Verification::compare(std::span<const at::Tensor> results,
                                  std::span<const at::Tensor> expected,
                                  std::span<const at::Tensor> given,
                                  std::span<const std::int64_t> sizes,
                                  const std::function<void()>& before_each) {
  std::optional<std::vector<std::vector<at::Tensor>>> disturbed;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor result =
        device::is_resident(results[i]) ? device::download(results[i]) : results[i];
    if (find_difference(result, expected[i]).empty()) continue;
    if (!disturbed) disturbed = disturbed_runs(given, sizes, before_each);
    std::vector<at::Tensor> others;
    for (const auto& run : *disturbed) others.push_back(run[i]);
    const std::string difference = find_difference(result, expected[i], others);
    if (!difference.empty()) return "output " + std::to_string(i) + " " + difference;
  }
  return {};
}

}  // namespace backplane::compiler
