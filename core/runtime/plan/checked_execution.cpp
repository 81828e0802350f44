#include "core/runtime/plan/checked_execution.h"

#include <algorithm>
#include <cstring>

#include "core/ir/view.h"
#include "core/runtime/host/error.h"
#include "core/runtime/plugin/plugin.h"

namespace backplane::runtime {

namespace {

bool is_bound(const bp_range& range) { return range.host != nullptr || range.buffer != nullptr; }

bool holds(std::span<const std::byte> element, Filling filling) {
  return count_filled(element, filling) == element.size();
}

// Bytes of the longest stretch that is as if filled.
std::size_t longest_run(std::span<const std::byte> memory, Filling filling) {
  std::size_t longest = 0;
  for (std::size_t at = 0; at + 2 <= memory.size(); at += 2) {
    const std::size_t here = count_filled(memory.subspan(at), filling) / 2 * 2;
    longest = std::max(longest, here);
    at += here;  // behind it lies one that differs
  }
  return longest;
}

// Whether such an element never comes about by computing: not so for small integers.
bool is_telling(ir::DType dtype) {
  return ir::is_float(dtype) || ir::is_complex(dtype) || dtype == ir::DType::kBool ||
         ir::dtype_bytes(dtype) >= 4;
}

}  // namespace

CheckedExecution::CheckedExecution(MemoryCheck& check, std::uint32_t step,
                                   const bp_execute_args& args)
    : check_(check),
      graph_(check.graph_),
      step_(step),
      partition_(graph_.partitions_[graph_.steps_[step].index]),
      args_(args),
      inputs_(partition_.inputs.size()),
      outputs_(partition_.outputs.size()) {
  const auto* const in = static_cast<const bp_binding*>(args.inputs);
  const auto* const out = static_cast<const bp_binding*>(args.outputs);
  in_.assign(in, in + inputs_.size());
  out_.assign(out, out + outputs_.size());
}

Status CheckedExecution::fault(const std::string& text) const {
  std::string message =
      "BACKPLANE_CHECK=memory: plugin '" + partition_.device->plugin().name() + "' " + text;
  if (!spans_.empty()) message += ", while it ran " + spans_.back();
  return {Code::kInternal, std::move(message)};
}

std::string CheckedExecution::value_of_output(std::size_t i) const {
  return graph_.value_text(partition_.outputs[i].value);
}
std::string CheckedExecution::value_of_input(std::size_t i) const {
  return graph_.value_text(partition_.inputs[i].value);
}

Status CheckedExecution::bind(const bp_range& real, bool output, Bound& out) {
  out.real = real;
  if (!is_bound(real)) return {};
  Device* const device = real.buffer != nullptr ? partition_.device : nullptr;
  BP_ASSIGN_OR_RETURN(out.copy, GuardedRange::make(device, real.size_bytes));
  if (output) {
    BP_RETURN_IF_ERROR(out.copy->fill(Filling::kUnwritten));
    std::vector<std::byte> filling(static_cast<std::size_t>(real.size_bytes));
    fill(filling, Filling::kUnwritten);
    return check_copies(*out.copy, filling);
  }
  BP_ASSIGN_OR_RETURN(const std::vector<std::byte> content, read_range(device, real));
  for (std::size_t k = 0; k < std::size(kFillings); ++k)
    in_inputs_[k] = std::max(in_inputs_[k], longest_run(content, kFillings[k]));
  BP_RETURN_IF_ERROR(out.copy->write(content));
  return check_copies(*out.copy, content);
}

// Before a kernel has run: what is wrong then is no kernel's fault.
Status CheckedExecution::check_copies(const GuardedRange& range,
                                      std::span<const std::byte> content) const {
  if (range.device() == nullptr) return {};
  BP_ASSIGN_OR_RETURN(const std::optional<std::int64_t> damage, range.find_damage());
  BP_ASSIGN_OR_RETURN(const std::vector<std::byte> back, range.read());
  if (!damage && std::ranges::equal(back, content)) return {};
  return fault("does not copy, or goes on when a copy without a signal has returned: of " +
               std::to_string(content.size()) +
               " bytes that the host copied to the device others came back, before a kernel ran");
}

Status CheckedExecution::prepare() {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    BP_RETURN_IF_ERROR(bind(in_[i].range, false, inputs_[i]));
    if (inputs_[i].copy) in_[i].range = inputs_[i].copy->range();
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    BP_RETURN_IF_ERROR(bind(out_[i].range, true, outputs_[i]));
    if (outputs_[i].copy) out_[i].range = outputs_[i].copy->range();
  }
  return {};
}

Status CheckedExecution::run() {
  BP_RETURN_IF_ERROR(prepare());
  bp_execute_args args = args_;
  args.inputs = in_.data();
  args.outputs = out_.data();
  if (args_.workspace.size_bytes != 0) {
    Device* const device = args_.workspace.buffer != nullptr ? partition_.device : nullptr;
    BP_ASSIGN_OR_RETURN(GuardedRange made, GuardedRange::make(device, args_.workspace.size_bytes));
    BP_RETURN_IF_ERROR(made.fill(Filling::kScratch));
    workspaces_.push_back({std::move(made)});
    args.workspace = workspaces_.back().range.range();
  }
  bp_lending lending{sizeof lending,  this,           &lend_output, &input_done,
                     &lend_workspace, &workspace_done};
  if (args_.lending != nullptr) args.lending = &lending;
  args.order = check_.frame_.order(partition_.place, /*signals=*/true);
  Status status;
  {
    const SpanListener::Scope scope(*this);
    status = partition_.executable->execute(args);
  }
  if (status.ok()) status = check_.frame_.wait(partition_.place);
  BP_RETURN_IF_ERROR(std::move(first_));
  BP_RETURN_IF_ERROR(std::move(status));
  return finish();
}

Status CheckedExecution::finish() {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i].copy) continue;
    BP_RETURN_IF_ERROR(check_guards(*inputs_[i].copy, value_of_input(i)));
    if (!inputs_[i].done) BP_RETURN_IF_ERROR(check_input(i));
  }
  for (const Workspace& workspace : workspaces_) {
    BP_RETURN_IF_ERROR(check_guards(workspace.range, "a workspace"));
    if (workspace.freed && count_filled(workspace.range.host(), Filling::kFreed) !=
                               static_cast<std::size_t>(workspace.range.bytes()))
      return fault("wrote to a workspace that it had given back");
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    if (outputs_[i].copy) BP_RETURN_IF_ERROR(finish_output(i));
  return {};
}

Status CheckedExecution::check_guards(const GuardedRange& range, const std::string& what) const {
  BP_ASSIGN_OR_RETURN(const std::optional<std::int64_t> at, range.find_damage());
  if (!at) return {};
  const std::string place =
      *at < 0 ? "before the begin (" + std::to_string(-*at) + " bytes before it)"
              : "past the end (at byte " +
                    std::to_string(static_cast<std::int64_t>(range.bytes()) + *at) + ")";
  return fault("wrote " + place + " of " + what + ", which has " + std::to_string(range.bytes()) +
               " bytes");
}

Status CheckedExecution::check_input(std::size_t i) const {
  BP_ASSIGN_OR_RETURN(const std::vector<std::byte> now, inputs_[i].copy->read());
  BP_ASSIGN_OR_RETURN(const std::vector<std::byte> before,
                      read_range(inputs_[i].copy->device(), inputs_[i].real));
  if (now == before) return {};
  const auto at = std::mismatch(now.begin(), now.end(), before.begin()).first - now.begin();
  return fault("wrote to its input " + value_of_input(i) + ", at byte " + std::to_string(at));
}

Status CheckedExecution::finish_output(std::size_t i) {
  const Bound& output = outputs_[i];
  BP_RETURN_IF_ERROR(check_guards(*output.copy, value_of_output(i)));
  BP_ASSIGN_OR_RETURN(const std::vector<std::byte> content, output.copy->read());
  BP_RETURN_IF_ERROR(check_elements(i, content));
  return write_range(output.copy->device(), output.real, content);
}

Status CheckedExecution::check_elements(std::size_t i, std::span<const std::byte> content) const {
  const ir::ValueId value = partition_.outputs[i].value;
  if (check_.may_be_unset_[value]) return {};
  const ir::TensorType& type = graph_.graph_.values[value].type;
  const std::span<const std::int64_t> classes = check_.frame_.dim_values();
  const std::vector<std::int64_t> dims = ir::resolve(type.dims, classes),
                                  strides = ir::resolve(type.strides, classes);
  const auto size = static_cast<std::size_t>(ir::dtype_bytes(type.dtype));
  std::int64_t count = 1;
  for (const std::int64_t d : dims) count *= d;
  std::int64_t found[std::size(kFillings)] = {}, first[std::size(kFillings)] = {};
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t offset = 0, rest = n;
    for (std::size_t d = dims.size(); d-- > 0; rest /= dims[d])
      offset += rest % dims[d] * strides[d];
    const auto element = content.subspan(static_cast<std::size_t>(offset) * size, size);
    for (std::size_t k = 0; k < std::size(kFillings); ++k)
      if (holds(element, kFillings[k]) && found[k]++ == 0) first[k] = n;
  }
  for (std::size_t k = 0; k < std::size(kFillings); ++k) {
    // A small integer may be that number; all of many are not.
    if (found[k] == 0 || (!is_telling(type.dtype) && (found[k] != count || count < 8))) continue;
    if (in_inputs_[k] >= size) continue;  // halves of elements tell nothing: data are full of them
    const std::string elements = std::to_string(found[k]) + " of " + std::to_string(count) +
                                 " elements of its output " + value_of_output(i) +
                                 " (the first is number " + std::to_string(first[k]) + ")";
    switch (kFillings[k]) {
      case Filling::kUnwritten:
        return fault("did not write " + elements);
      case Filling::kScratch:
        return fault("read a workspace that it had not written: it shows in " + elements);
      case Filling::kGuard:
        return fault("read beyond what was bound: it shows in " + elements);
      case Filling::kFreed:
        return fault("read memory that it had given back: it shows in " + elements);
    }
  }
  return {};
}

// Guard zones on the host are looked at after each step that the plugin names.
void CheckedExecution::span_ends() {
  const auto look = [&](const GuardedRange& range, const std::string& what) {
    if (first_.ok() && range.find_host_damage()) first_ = check_guards(range, what);
  };
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].copy) look(*inputs_[i].copy, value_of_input(i));
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    if (outputs_[i].copy) look(*outputs_[i].copy, value_of_output(i));
  for (const Workspace& workspace : workspaces_) look(workspace.range, "a workspace");
  if (!spans_.empty()) spans_.pop_back();
}

bp_error* CheckedExecution::lend_output(void* user, std::uint32_t output, bp_range* out_range) {
  auto& self = *static_cast<CheckedExecution*>(user);
  if (output < self.outputs_.size() && self.outputs_[output].copy) {
    *out_range = self.outputs_[output].copy->range();
    return nullptr;
  }
  bp_range real{};
  if (bp_error* const error =
          self.args_.lending->lend_output(self.args_.lending->user, output, &real))
    return error;
  const Status status = self.bind(real, true, self.outputs_[output]);
  if (!status.ok()) return make_error(BP_OUT_OF_MEMORY, status.message());
  *out_range = self.outputs_[output].copy ? self.outputs_[output].copy->range() : real;
  return nullptr;
}

void CheckedExecution::input_done(void* user, std::uint32_t input) {
  auto& self = *static_cast<CheckedExecution*>(user);
  if (input >= self.inputs_.size()) return;
  Bound& bound = self.inputs_[input];
  if (bound.copy && !bound.done) {
    bound.done = true;
    Status status = self.check_input(input);
    if (status.ok()) status = bound.copy->fill(Filling::kFreed);
    if (self.first_.ok()) self.first_ = std::move(status);
  }
  self.args_.lending->input_done(self.args_.lending->user, input);
}

bp_error* CheckedExecution::lend_workspace(void* user, std::uint64_t bytes,
                                           bp_workspace_kind /*kind*/, bp_range* out_range) {
  auto& self = *static_cast<CheckedExecution*>(user);
  auto made = GuardedRange::make(nullptr, bytes);
  if (!made.ok()) return make_error(BP_OUT_OF_MEMORY, made.status().message());
  fill(made->host(), Filling::kScratch);
  self.workspaces_.push_back({std::move(*made), true});
  *out_range = self.workspaces_.back().range.range();
  return nullptr;
}

void CheckedExecution::workspace_done(void* user, const bp_range* range,
                                      bp_workspace_kind /*kind*/) {
  auto& self = *static_cast<CheckedExecution*>(user);
  const auto found = std::ranges::find_if(self.workspaces_, [&](const Workspace& w) {
    return w.lent && !w.freed && w.range.range().host == range->host;
  });
  if (found == self.workspaces_.end()) {
    if (self.first_.ok()) self.first_ = self.fault("gave back a workspace that it was not lent");
    return;
  }
  // The memory stays until the call ends, so that late writes show.
  found->freed = true;
  fill(found->range.host(), Filling::kFreed);
}

}  // namespace backplane::runtime
