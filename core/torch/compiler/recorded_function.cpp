#include "core/torch/compiler/recorded_function.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "core/torch/bridge/attention.h"
#include "core/torch/bridge/tangent.h"
#include "core/torch/device/devices.h"

namespace backplane::compiler {

namespace {

constexpr std::size_t kMaxHits = 1024;

std::uint64_t hash_of(const std::vector<std::int64_t>& key) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (const std::int64_t word : key) {
    hash ^= static_cast<std::uint64_t>(word);
    hash *= 1099511628211ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

std::vector<at::Tensor> tensors_of(std::span<const c10::IValue> arguments) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(arguments.size());
  for (const c10::IValue& argument : arguments)
    if (argument.isTensor()) tensors.push_back(argument.toTensor());
  return tensors;
}

// `arguments` with other tensors.
std::vector<c10::IValue> with_tensors(std::span<const c10::IValue> arguments,
                                      std::span<const at::Tensor> tensors) {
  std::vector<c10::IValue> out(arguments.begin(), arguments.end());
  auto next = tensors.begin();
  for (c10::IValue& value : out)
    if (value.isTensor()) value = *next++;
  return out;
}

}  // namespace

RecordedFunction::RecordedFunction(Callable program, RecordedOptions options)
    : program_(std::move(program)), options_(std::move(options)), programs_(options_.cut) {}

RecordedFunction::~RecordedFunction() = default;

RecordedFunction::Counts RecordedFunction::counts() const {
  Counts counts;
  counts.recordings = recordings_.load(std::memory_order_relaxed);
  counts.record_ns = record_ns_.load(std::memory_order_relaxed);
  const ProgramStore::Counts compiled = programs_.counts();
  counts.structures = compiled.structures;
  counts.splits = compiled.splits;
  const std::lock_guard lock(mutex_);
  counts.sizes = hits_.size();
  return counts;
}

void RecordedFunction::make_key(std::span<const c10::IValue> arguments, Key& out_key) {
  std::vector<std::int64_t>& words = out_key.words;
  words.clear();
  out_key.offsets.clear();
  // "backplane" alone is the current device.
  words.push_back(at::GradMode::is_enabled() | (c10::InferenceMode::is_enabled() << 1) |
                  (c10::impl::TorchDispatchModeTLS::any_modes_set() << 2) |
                  (bridge::allowed_attention() << 3) | (device::current_device() << 8));
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      const at::Tensor& tensor = argument.toTensor();
      if (!tensor.defined() || tensor.layout() != at::kStrided) {
        words.push_back(-2);
        continue;
      }
      const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
      words.push_back(static_cast<std::int64_t>(tensor.scalar_type()) |
                      (static_cast<std::int64_t>(tensor.requires_grad()) << 8) |
                      (static_cast<std::int64_t>(tensor.is_leaf()) << 9) |
                      (static_cast<std::int64_t>(bridge::has_tangent(impl)) << 10) |
                      (static_cast<std::int64_t>(tensor.device().type()) << 16) |
                      (std::int64_t{static_cast<std::uint8_t>(tensor.device().index())} << 24) |
                      (tensor.dim() << 32));
      // Wrappers of functorch, pending conjugations, inference tensors.
      words.push_back(static_cast<std::int64_t>(impl.key_set().raw_repr()));
      const auto sizes = tensor.sizes(), strides = tensor.strides();
      words.insert(words.end(), sizes.begin(), sizes.end());
      words.insert(words.end(), strides.begin(), strides.end());
      out_key.offsets.push_back(tensor.storage_offset());
    } else if (argument.isInt()) {
      words.insert(words.end(), {-3, argument.toInt()});
    } else if (argument.isBool()) {
      words.insert(words.end(), {-4, argument.toBool()});
    } else if (argument.isDouble()) {
      std::int64_t bits = 0;
      const double number = argument.toDouble();
      std::memcpy(&bits, &number, sizeof bits);
      words.insert(words.end(), {-5, bits});
    } else {
      words.push_back(-6);  // None: nothing else is taken
    }
  }
}

std::shared_ptr<const RecordedFunction::Hit> RecordedFunction::find(const Key& key) {
  const std::lock_guard lock(mutex_);
  if (hits_.empty()) return nullptr;
  if (hits_.front()->serves(key)) return hits_.front();
  const auto [first, last] = by_hash_.equal_range(hash_of(key.words));
  for (auto it = first; it != last; ++it) {
    if (!(*it->second)->serves(key)) continue;
    hits_.splice(hits_.begin(), hits_, it->second);
    return hits_.front();
  }
  return nullptr;
}

void RecordedFunction::remember(std::shared_ptr<const Hit> hit) {
  const std::lock_guard lock(mutex_);
  hits_.push_front(std::move(hit));
  by_hash_.emplace(hits_.front()->hash, hits_.begin());
  if (hits_.size() <= kMaxHits) return;
  const auto oldest = std::prev(hits_.end());
  const auto [first, last] = by_hash_.equal_range((*oldest)->hash);
  for (auto it = first; it != last; ++it)
    if (it->second == oldest) {
      by_hash_.erase(it);
      break;
    }
  hits_.erase(oldest);
}

std::optional<Result<std::vector<c10::IValue>>> RecordedFunction::try_call(
    std::span<const c10::IValue> arguments) {
  if (Status status = check_process(options_.cut.devices); !status.ok()) [[unlikely]]
    return Result<std::vector<c10::IValue>>(std::move(status));
  static thread_local Key key;
  make_key(arguments, key);
  const std::shared_ptr<const Hit> hit = find(key);
  if (!hit) return std::nullopt;
  const std::vector<at::Tensor> tensors = tensors_of(arguments);
  const Program& program = hit->program;
  if (!autograd::may_write(program.code->signature, tensors)) return std::nullopt;
  return autograd::call(program.code, program.sizes, tensors);
}

Result<record::Recorded> RecordedFunction::record(std::span<const c10::IValue> arguments) {
  const auto start = std::chrono::steady_clock::now();
  record::RecordOptions options;
  options.name = options_.cut.name;
  options.merge_equal_arguments = false;
  options.locate = options_.locate;
  // By tensor from here on.
  std::uint32_t tensor_index = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor()) continue;
    if (i < options_.argument_names.size())
      options.argument_names.push_back(options_.argument_names[i]);
    if (std::ranges::find(options_.static_arguments, i) != options_.static_arguments.end())
      options.static_arguments.push_back(tensor_index);
    if (std::ranges::find(options_.buffers, i) != options_.buffers.end())
      options.buffers.push_back(tensor_index);
    ++tensor_index;
  }
  const std::vector<at::Tensor> tensors = tensors_of(arguments);
  const record::Program program = [&](const std::vector<at::Tensor>& given) {
    return program_(with_tensors(arguments, given));
  };
  recordings_.fetch_add(1, std::memory_order_relaxed);
  BP_ASSIGN_OR_RETURN(record::Recorded recorded, record::record(program, tensors, options));
  record_ns_.fetch_add(
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now() - start)
                                     .count()),
      std::memory_order_relaxed);
  return recorded;
}

SizeChoice RecordedFunction::choose_sizes(std::span<const c10::IValue> arguments) {
  SizeChoice choice;
  if (options_.dynamic_sizes.empty()) return choice;
  std::map<std::uint32_t, SizeSymbol> symbols;  // by their number
  std::vector<at::Tensor> tensors(arguments.size());
  for (const DynamicSize& dynamic : options_.dynamic_sizes) {
    const c10::IValue& argument = arguments[dynamic.argument];
    SizeSymbol& symbol = symbols[dynamic.symbol];
    if (dynamic.dim < 0) {
      symbol.value = argument.toInt();
      symbol.numbers.push_back(dynamic.argument);
      continue;
    }
    tensors[dynamic.argument] = argument.toTensor();
    symbol.value = argument.toTensor().size(dynamic.dim);
    symbol.dims.emplace_back(dynamic.argument, dynamic.dim);
  }
  std::vector<SizeSymbol> in_order;
  for (auto& [number, symbol] : symbols) in_order.push_back(std::move(symbol));
  choice.inventor.emplace(std::move(tensors), std::move(in_order));
  choice.record = [this, arguments](const InventedSizes& invented) {
    std::vector<c10::IValue> given(arguments.begin(), arguments.end());
    for (const auto& [position, tensor] : invented.tensors) given[position] = tensor;
    for (const auto& [position, number] : invented.numbers) given[position] = number;
    return record(given);
  };
  return choice;
}

Status RecordedFunction::add(std::span<const c10::IValue> arguments,
                             const ProgramStore::Accept& accept) {
  BP_RETURN_IF_ERROR(check_process(options_.cut.devices));
  BP_ASSIGN_OR_RETURN(const LongMutex::Lock adding, adding_.hold("Compiling this program"));
  BP_ASSIGN_OR_RETURN(record::Recorded recorded, record(arguments));
  auto hit = std::make_shared<Hit>();
  Key key;
  make_key(arguments, key);
  hit->words = std::move(key.words);
  if (recorded.reads_offsets) hit->offsets = std::move(key.offsets);
  hit->hash = hash_of(hit->words);
  const std::vector<c10::IValue> others = with_tensors(
      arguments, std::vector<at::Tensor>(arguments.size()));  // does not keep tensors alive
  BP_ASSIGN_OR_RETURN(hit->program,
                      programs_.add(
                          std::move(recorded), choose_sizes(arguments), /*examples=*/{},
                          [program = program_, others](std::span<const at::Tensor> tensors) {
                            return program(with_tensors(others, tensors));
                          },
                          accept));
  remember(std::move(hit));
  return {};
}

}  // namespace backplane::compiler
