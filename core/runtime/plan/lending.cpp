#include "core/runtime/plan/lending.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "core/runtime/host/error.h"
#include "core/runtime/host/handles.h"
#include "core/runtime/plugin/figures.h"

namespace backplane::runtime {

// What the plugin points to. Never freed, so that a late use finds that the call has ended.
struct Lending::Place {
  bp_lending table{};
  std::atomic<Lending*> now{nullptr};
  Place* next = nullptr;  // unused
  // Those unused, under the mutex of handles; the one that rested longest comes first.
  inline static Place *first = nullptr, *last = nullptr;
  inline static std::size_t count = 0;
};

namespace {

constexpr std::size_t kResting = 16;  // so many others are used before one comes again

std::string range_text(const bp_range& range) {
  return std::to_string(range.size_bytes) + " bytes at offset " +
         std::to_string(range.offset_bytes) + (range.buffer != nullptr ? " of a buffer" : "");
}

}  // namespace

Lending::Place& Lending::take_place() {
  {
    const std::lock_guard lock(handle_mutex());
    if (Place::count > kResting) {
      --Place::count;
      return *std::exchange(Place::first, Place::first->next);
    }
  }
  auto* const made = new Place;
  made->table = {sizeof(bp_lending), made, lend_output, input_done, lend_workspace, workspace_done};
  return *made;
}

Lending::Lending(const bp_lending& inner, std::string_view plugin, std::size_t input_count,
                 std::size_t output_count)
    : inner_(inner),
      plugin_(plugin),
      done_inputs_(input_count),
      lent_outputs_(output_count),
      place_(take_place()) {
  place_.now.store(this, std::memory_order_release);
}

Lending::~Lending() {
  place_.now.store(nullptr, std::memory_order_release);
  for (const Workspace& kept : workspaces_)
    inner_.workspace_done(inner_.user, &kept.range, kept.kind);
  const std::lock_guard lock(handle_mutex());
  place_.next = nullptr;
  (Place::count++ == 0 ? Place::first : Place::last->next) = &place_;
  Place::last = &place_;
}

const bp_lending* Lending::handle() const { return &place_.table; }

Status Lending::finish() {
  const auto kept = std::ranges::count_if(
      workspaces_, [](const Workspace& lent) { return lent.range.size_bytes != 0; });
  if (kept != 0)
    fault("execute", "kept " + std::to_string(kept) +
                         " lent workspaces; give each back before execute returns");
  return std::move(first_);
}

std::string Lending::fault(const char* entry, std::string_view text) {
  std::string said = report_misuse(plugin_, entry, text);
  if (first_.ok()) first_ = Status(Code::kInternal, said);
  return said;
}

Lending* Lending::of(void* user, const char* entry) {
  Lending* const now = static_cast<Place*>(user)->now.load(std::memory_order_acquire);
  if (now == nullptr)
    report_misuse(calling_plugin(), entry, "the call that bp_lending was for has ended");
  return now;
}

bp_error* Lending::lend_output(void* user, std::uint32_t output, bp_range* out_range) {
  Lending* const self = of(user, "lend_output");
  if (self == nullptr) return make_error(BP_INVALID_ARGUMENT, "lend_output after its call");
  if (output >= self->lent_outputs_.size() || self->lent_outputs_[output])
    return make_error(BP_INVALID_ARGUMENT,
                      self->fault("lend_output", "output " + std::to_string(output) + " of " +
                                                     std::to_string(self->lent_outputs_.size()) +
                                                     "; expected each once"));
  if (bp_error* const error = self->inner_.lend_output(self->inner_.user, output, out_range))
    return error;
  self->lent_outputs_[output] = true;
  return nullptr;
}

void Lending::input_done(void* user, std::uint32_t input) {
  Lending* const self = of(user, "input_done");
  if (self == nullptr) return;
  if (input >= self->done_inputs_.size() || self->done_inputs_[input]) {
    self->fault("input_done", "input " + std::to_string(input) + " of " +
                                  std::to_string(self->done_inputs_.size()) +
                                  "; expected each at most once");
    return;
  }
  self->done_inputs_[input] = true;
  self->inner_.input_done(self->inner_.user, input);
}

bp_error* Lending::lend_workspace(void* user, std::uint64_t bytes, bp_workspace_kind kind,
                                  bp_range* out_range) {
  Lending* const self = of(user, "lend_workspace");
  if (self == nullptr) return make_error(BP_INVALID_ARGUMENT, "lend_workspace after its call");
  if (bytes > kBytesLimit)
    return make_error(BP_INVALID_ARGUMENT,
                      self->fault("lend_workspace", "asked for " + std::to_string(bytes) +
                                                        " bytes; expected at most " +
                                                        std::to_string(kBytesLimit)));
  if (bp_error* const error =
          self->inner_.lend_workspace(self->inner_.user, bytes, kind, out_range))
    return error;
  self->workspaces_.push_back({*out_range, kind});
  return nullptr;
}

void Lending::workspace_done(void* user, const bp_range* range, bp_workspace_kind kind) {
  Lending* const self = of(user, "workspace_done");
  if (self == nullptr) return;
  if (range == nullptr) {
    self->fault("workspace_done", "the range is NULL");
    return;
  }
  const auto found = std::ranges::find_if(self->workspaces_, [&](const Workspace& lent) {
    return lent.range.host == range->host && lent.range.buffer == range->buffer;
  });
  if (found == self->workspaces_.end()) {
    self->fault("workspace_done",
                "gave back " + range_text(*range) + " that it was not lent, or gave back before");
    return;
  }
  if (found->range.size_bytes != range->size_bytes ||
      found->range.offset_bytes != range->offset_bytes || found->kind != kind) {
    self->fault("workspace_done", "gave back " + range_text(*range) + " as kind " +
                                      std::to_string(kind) + "; lent were " +
                                      range_text(found->range) + " as kind " +
                                      std::to_string(found->kind));
    return;
  }
  const Workspace lent = *found;
  self->workspaces_.erase(found);
  self->inner_.workspace_done(self->inner_.user, &lent.range, lent.kind);
}

}  // namespace backplane::runtime
