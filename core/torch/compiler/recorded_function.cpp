#include "core/torch/compiler/recorded_function.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/torch/bridge/tangent.h"
#include "core/torch/device/devices.h"
#include "core/torch/device/resized.h"

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

RecordedFunction::RecordedFunction(Program program, RecordedOptions options)
    : program_(std::move(program)), options_(std::move(options)) {}

RecordedFunction::~RecordedFunction() = default;

RecordedFunction::Counts RecordedFunction::counts() const {
  Counts counts;
  counts.recordings = recordings_.load(std::memory_order_relaxed);
  counts.record_ns = record_ns_.load(std::memory_order_relaxed);
  counts.structures = structure_count_.load(std::memory_order_relaxed);
  counts.splits = splits_.load(std::memory_order_relaxed);
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
                  (device::current_device() << 3));
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
  static thread_local Key key;
  make_key(arguments, key);
  const std::shared_ptr<const Hit> hit = find(key);
  if (!hit) return std::nullopt;
  const std::vector<at::Tensor> tensors = tensors_of(arguments);
  if (!autograd::may_write(hit->entry->signature, tensors)) return std::nullopt;
  return autograd::call(hit->entry, hit->sizes, tensors);
}

Result<RecordedFunction::Sample> RecordedFunction::record(std::span<const c10::IValue> arguments) {
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
    ++tensor_index;
  }
  const std::vector<at::Tensor> tensors = tensors_of(arguments);
  const record::Program program = [&](const std::vector<at::Tensor>& given) {
    return program_(with_tensors(arguments, given));
  };
  recordings_.fetch_add(1, std::memory_order_relaxed);
  BP_ASSIGN_OR_RETURN(record::Recorded recorded, record::record(program, tensors, options));
  auto flat = flatten_with_border(recorded);
  record_ns_.fetch_add(
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now() - start)
                                     .count()),
      std::memory_order_relaxed);
  return Sample{std::move(recorded), std::move(flat)};
}

std::optional<std::vector<c10::IValue>> RecordedFunction::invent(
    std::span<const c10::IValue> arguments, std::int64_t first_step, std::int64_t step) const {
  std::vector<c10::IValue> out(arguments.begin(), arguments.end());
  std::unordered_map<std::uint32_t, std::vector<std::int64_t>> sizes;  // by argument
  for (const DynamicSize& dynamic : options_.dynamic_sizes) {
    const c10::IValue& argument = arguments[dynamic.argument];
    const auto change = [&](std::int64_t now) { return now + first_step + step * dynamic.symbol; };
    if (dynamic.dim < 0) {
      const std::int64_t value = change(argument.toInt());
      if (value < 2) return std::nullopt;
      out[dynamic.argument] = value;
      continue;
    }
    const at::Tensor& tensor = argument.toTensor();
    auto& changed = sizes.try_emplace(dynamic.argument, tensor.sizes().vec()).first->second;
    const auto d = static_cast<std::size_t>(dynamic.dim);
    changed[d] = change(changed[d]);
    if (changed[d] < 2) return std::nullopt;
  }
  for (const auto& [argument, changed] : sizes) {
    const at::Tensor& tensor = arguments[argument].toTensor();
    std::optional<at::Tensor> made = device::resized(tensor, changed);
    if (!made) return std::nullopt;
    out[argument] = std::move(*made);
  }
  return out;
}

std::vector<std::shared_ptr<const ir::FlatGraph>> RecordedFunction::invented_samples(
    std::span<const c10::IValue> arguments, const ir::FlatGraph& first) {
  constexpr std::size_t kEnough = 2;
  // Larger ones first; a program with a largest size says no to them.
  constexpr std::array<std::pair<std::int64_t, std::int64_t>, 4> kSteps{
      {{1, 2}, {4, 3}, {-1, -2}, {-2, -3}}};
  std::vector<std::shared_ptr<const ir::FlatGraph>> samples;
  for (const auto& [first_step, step] : kSteps) {
    if (samples.size() >= kEnough) break;
    const auto invented = invent(arguments, first_step, step);
    if (!invented) continue;
    const Result<Sample> sample = record(*invented);
    if (sample.ok() && sample->flat->structure == first.structure) samples.push_back(sample->flat);
  }
  return samples;
}

Result<std::shared_ptr<StagedProgram>> RecordedFunction::compile(
    record::Recorded recorded, std::span<const c10::IValue> arguments) {
  const std::vector<c10::IValue> others = with_tensors(
      arguments, std::vector<at::Tensor>(arguments.size()));  // does not keep tensors alive
  BP_ASSIGN_OR_RETURN(
      std::shared_ptr<StagedProgram> entry,
      CutEntry::compile(std::move(recorded), options_.cut,
                        [program = program_, others](std::span<const at::Tensor> tensors) {
                          return program(with_tensors(others, tensors));
                        }));
  return entry;
}

Result<std::vector<Stage>> RecordedFunction::add(std::span<const c10::IValue> arguments) {
  const std::lock_guard adding(adding_);
  BP_ASSIGN_OR_RETURN(Sample sample, record(arguments));
  auto hit = std::make_shared<Hit>();
  Key key;
  make_key(arguments, key);
  hit->words = std::move(key.words);
  if (sample.recorded.reads_offsets) hit->offsets = std::move(key.offsets);
  hit->hash = hash_of(hit->words);
  SizeFamily::Invent invent;
  if (!options_.dynamic_sizes.empty())
    invent = [&](const ir::FlatGraph& first) -> Result<SizeFamily::Samples> {
      return invented_samples(arguments, first);
    };
  BP_ASSIGN_OR_RETURN(
      SizeFamily::Member member,
      family_.add(
          std::move(sample.recorded), sample.flat,
          [&](record::Recorded recorded) { return compile(std::move(recorded), arguments); },
          invent));
  structure_count_.fetch_add(member.new_structure ? 1 : 0, std::memory_order_relaxed);
  splits_.fetch_add(member.split ? 1 : 0, std::memory_order_relaxed);
  std::vector<Stage> stages;
  if (member.is_new) stages = member.entry->stages();
  hit->entry = std::move(member.entry);
  hit->sizes = std::move(member.sizes);
  remember(std::move(hit));
  return stages;
}

}  // namespace backplane::compiler
