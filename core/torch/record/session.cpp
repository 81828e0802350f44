#include "core/torch/record/session.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>

#include <torch/version.h>

#include <atomic>
#include <string_view>
#include <utility>

#include "core/torch/record/dispatch.h"

namespace backplane::record {

namespace {

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
constexpr std::string_view kSlotName = "BACKPLANE_RECORDING";
const c10::DebugInfoKind kSlot(&kSlotName);
#else
constexpr c10::DebugInfoKind kSlot = c10::DebugInfoKind::INFERENCE_CONTEXT;
#endif

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

// As a constant lies: each element once, from the start of the memory.
at::Tensor in_memory_of_its_own(const at::Tensor& tensor) {
  const BelowRecording below;
  if (!tensor.is_non_overlapping_and_dense()) return tensor.contiguous();
  return tensor.storage_offset() == 0 ? tensor : tensor.clone();
}

}  // namespace

Session::Session() : number_(next_number()) {}

Session* Session::current() {
  auto* const session = static_cast<Session*>(c10::ThreadLocalDebugInfo::get(kSlot));
  return session && !session->is_none_ ? session : nullptr;
}

std::shared_ptr<Session> Session::none() {
  static const auto none = [] {
    auto made = std::make_shared<Session>();
    made->is_none_ = true;
    return made;
  }();
  return none;
}

SessionScope::SessionScope(std::shared_ptr<Session> session) : guard_(kSlot, std::move(session)) {}

ValueNumber Session::add_value(at::Tensor meta, c10::Device device, ValueOrigin origin) {
  TapeValue value;
  value.meta = std::move(meta);
  value.device = device;
  value.origin = origin;
  value.is_constant = origin == ValueOrigin::kConstant;
  tape.values.push_back(std::move(value));
  return static_cast<ValueNumber>(tape.values.size() - 1);
}

at::Tensor Session::wrap(ValueNumber number) const {
  const TapeValue& value = tape.values[number];
  return at::Tensor(c10::make_intrusive<ValueTensor>(value.meta, value.device, number_, number));
}

at::Tensor Session::make_input(const at::Tensor& like) {
  return wrap(add_value(meta_like(like), like.device(), ValueOrigin::kInput));
}

ValueNumber Session::add_constant(const at::Tensor& given) {
  // Shape functions in Python read a number's value, so it stays one.
  const bool is_number = given.unsafeGetTensorImpl()->is_wrapped_number();
  const at::Tensor tensor = is_number ? given : in_memory_of_its_own(given);
  const ValueNumber value =
      add_value(is_number ? tensor : meta_like(tensor), tensor.device(), ValueOrigin::kConstant);
  tape.values[value].constant = tensor;
  return value;
}

ValueNumber Session::number_of(const at::Tensor& tensor, std::string_view reader) {
  if (const ValueTensor* value = find_value(tensor)) {
    if (value->session() != number_)
      refuse(std::string(reader) + " reads a tensor of another recording");
    return value->number();
  }
  // A Python number, or a tensor that the program itself makes from Python data.
  const bool is_own = reader == "aten.lift_fresh" || reader == "aten.lift" ||
                      tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (!is_own)
    refuse(std::string(reader) +
           " reads a tensor that is neither an argument nor made by the program");
  return add_constant(tensor);
}

const std::string* Session::find_location() {
  if (in_backward) {
    const auto node = torch::autograd::get_current_node();
    if (!node) return nullptr;
    const auto found = locations_.find(node->sequence_nr());
    return found == locations_.end() ? nullptr : found->second;
  }
  if (!locate) return nullptr;
  const std::string* location = locate();
  // The operator's node, if it has one, is the last that was made.
  if (location) locations_.try_emplace(at::sequence_number::peek() - 1, location);
  return location;
}

std::optional<at::Tensor> Session::evaluate(ValueNumber number) {
  if (!tape.values[number].is_constant) return std::nullopt;
  const auto constant = [&](ValueNumber value) -> at::Tensor& {
    return tape.values[value].constant;
  };
  // A program may make a number in very many steps.
  std::vector<ValueNumber> pending{number};
  while (!pending.empty()) {
    const ValueNumber value = pending.back();
    const bool is_known = constant(value).defined();
    const Call* call = is_known ? nullptr : &tape.calls[tape.values[value].producer];
    const std::size_t before = pending.size();
    if (call)
      for (const ValueNumber operand : call->operands)
        if (operand != kNoValue && !constant(operand).defined()) pending.push_back(operand);
    if (pending.size() > before) continue;
    pending.pop_back();
    if (!call) continue;
    torch::jit::Stack stack = make_stack(*call, constant);
    const BelowRecording below;
    call->info->handle.callBoxed(stack);
    const std::vector<at::Tensor> results = take_results(stack);
    for (std::size_t i = 0; i < results.size() && i < call->results.size(); ++i)
      if (call->results[i] != kNoValue) constant(call->results[i]) = results[i];
  }
  return constant(number);
}

void Session::refuse(std::string reason, Code code) {
  note_error(reason.c_str(), code);
  throw Refusal(reason);
}

void Session::note_error(const char* text, Code code) {
  if (!refusal_.empty()) return;
  refusal_ = text;
  refusal_code_ = code;
}

}  // namespace backplane::record
