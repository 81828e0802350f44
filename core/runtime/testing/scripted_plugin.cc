// A strict plugin for tests: f32 only, few ops, refuses whatever the contract forbids the host, and
// misbehaves on request. Work on a stream runs no earlier than somebody waits for it, so a host
// that forgets to wait reads stale memory. $BACKPLANE_SCRIPTED, read at each call, is a list of
// words:
//
//   no_views        claims no view ops
//   no_relu         compile of aten.relu fails, though it is claimed
//   no_pair         compile of aten.relu and aten.neg in one graph fails
//   names_it        such an error names the node
//   of_this_form    such an error says that the node is unsupported
//   whole           the claim is one, to be taken whole
//   full_compile    compile finds no memory while buffers of more than 1024 bytes are allocated
//   not_now         execute answers that it cannot do this
//   execute_fails   execute fails
//   full            execute finds no memory while buffers of more than 1024 bytes are allocated
//   no_room         what execute queued finds no memory
//   event_fails     event_create fails
//   trapped         what execute queued fails
//   torn_copy       copies leave out the last four bytes; failed_copy: those of a stream fail when they run
//   early_event     events of copies to the host come before the copies, which the next work ends
//   opaque_output   compile answers an opaque layout for its outputs
//   host_memory     (at load) binds host memory
//   lends           (serial) takes memory as it needs it
//
// Faults in memory:
//
//   writes_past     an element after the end of each result
//   writes_before   an element before the begin of each result
//   writes_input    the first operand
//   leaves_last     the last element of each result is not written
//   leaves_last_neg the same, of aten.neg alone
//   reads_past      the last element comes from beyond the first operand
//   gives_back_twice, gives_back_part, gives_back_foreign, keeps_lent, inputs_done_twice,
//   lends_late (with lends) what their names say; lends_late in the call after
//   gives_back_early (with lends) inputs are given back before they are read
#include <backplane/sdk/program.hpp>
#include <backplane/sdk/table.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace backplane::scripted {

using sdk::Status;

constexpr std::size_t kAlignment = 64;
std::atomic<std::size_t> allocated_bytes{0};

bool asked(std::string_view word) {
  const char* text = std::getenv("BACKPLANE_SCRIPTED");
  return text != nullptr && std::string_view(text).find(word) != std::string_view::npos;
}

// Alone in the list.
bool is_word(std::string_view word) {
  const char* text = std::getenv("BACKPLANE_SCRIPTED");
  return text != nullptr && text == word;
}

// Marks a call that must not overlap another one.
class Alone {
 public:
  explicit Alone(std::atomic<int>& inside) : inside_(inside), first_(inside.fetch_add(1) == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ~Alone() { inside_.fetch_sub(1); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  Status check() const { return first_ ? Status() : Status(BP_INTERNAL, "two calls at once"); }

 private:
  std::atomic<int>& inside_;
  bool first_;
};

#if defined(SCRIPTED_SERIAL)
std::atomic<int> device_calls{0};
#define SCRIPTED_ENTER()           \
  const Alone alone(device_calls); \
  BP_SDK_RETURN_IF_ERROR(alone.check())
#else
#define SCRIPTED_ENTER() static_cast<void>(0)
#endif

class LazyStream final : public sdk::Stream {
 public:
  ~LazyStream() override {
    if (!asked("early_event")) static_cast<void>(flush());
  }
  void add(std::function<Status()> work) { work_.push_back(std::move(work)); }
  Status flush() {
    Status first;
    for (const auto& work : std::exchange(work_, {})) {
      Status status = work();
      if (first.ok()) first = std::move(status);
    }
    return first;
  }

 private:
  std::vector<std::function<Status()>> work_;
};

class LazyEvent final : public sdk::Event {
 public:
  ~LazyEvent() override {
    if (stream_ != nullptr && asked("wait_fails")) std::abort();  // the work goes on
  }
  void signal(LazyStream* stream, bool is_early) {
    stream_ = stream;
    is_early_ = is_early;
  }
  Status query(bool& out_done) override {
    out_done = !asked("wait_fails") || ++queries_ >= 5;
    return out_done && !is_early_ ? flush() : Status();
  }
  Status wait(std::uint64_t) override {
    if (asked("wait_fails")) return {BP_INTERNAL, "asked not to wait"};
    if (is_early_) return {};
    return flush();
  }

 private:
  Status flush() {
    return stream_ != nullptr ? std::exchange(stream_, nullptr)->flush() : Status();
  }
  LazyStream* stream_ = nullptr;
  int queries_ = 0;
  bool is_early_ = false;
};

Status submit(const sdk::Order& order, bool blocking, std::function<Status()> work,
              bool is_early = false) {
  auto* stream = static_cast<LazyStream*>(order.stream());
  if (stream == nullptr) return work();
  if (asked("early_event")) BP_SDK_RETURN_IF_ERROR(stream->flush());
  stream->add(std::move(work));
  if (order.signal() != nullptr) {
    static_cast<LazyEvent*>(order.signal())->signal(stream, is_early);
    return {};
  }
  return blocking ? stream->flush() : Status();
}

Status check_range(const bp_range& range) {
  if (range.buffer == nullptr) return {};
  const std::uint64_t bytes = sdk::Range(range).buffer()->bytes();
  if (range.offset_bytes % kAlignment != 0)
    return {BP_INVALID_ARGUMENT, "offset " + std::to_string(range.offset_bytes) + " is unaligned"};
  if (range.offset_bytes > bytes || range.size_bytes > bytes - range.offset_bytes)
    return {BP_INVALID_ARGUMENT, "a range leaves its buffer"};
  return {};
}

// Element-wise over strided operands, broadcast to the result.
class Elementwise final : public sdk::Kernel {
 public:
  Elementwise(const sdk::StepContext& step, float (*function)(float, float))
      : function_(function),
        is_neg_(!step.step().is_copy() && step.node().op() == "aten.neg"),
        result_(step.result()) {
    for (std::size_t i = 0; i < step.step().operands.size(); ++i)
      operands_.push_back(step.operand(i));
  }
  Status run(const sdk::KernelCall& call) const override {
    std::int64_t count = result_.elements();
    auto* const result = reinterpret_cast<float*>(call.results[0]);
    auto* const first = reinterpret_cast<float*>(call.operands[0]);
    if (asked("writes_input")) first[0] += 1;
    if (is_word("writes_past")) result[count] = 1;
    if (asked("writes_before")) result[-1] = 1;
    if (is_word("leaves_last") || (is_neg_ && asked("leaves_last_neg"))) --count;
    for (std::int64_t n = 0; n < count; ++n) {
      const float a = at(call.operands[0], operands_[0], n);
      const float b = operands_.size() > 1 ? at(call.operands[1], operands_[1], n) : 0;
      result[place(result_, n)] = function_(a, b);
    }
    if (asked("reads_past")) result[count - 1] = first[operands_[0].elements()];
    return {};
  }

 private:
  // Of the n-th element of the result, in elements from the tensor's start.
  std::int64_t place(const sdk::TensorSpec& spec, std::int64_t n) const {
    std::int64_t offset = 0;
    for (std::size_t i = result_.rank(); i-- > 0; n /= result_.dims[i]) {
      const std::size_t missing = result_.rank() - spec.rank();
      if (i >= missing && spec.dims[i - missing] != 1)
        offset += n % result_.dims[i] * spec.strides[i - missing];
    }
    return offset;
  }
  float at(const std::byte* data, const sdk::TensorSpec& spec, std::int64_t n) const {
    return reinterpret_cast<const float*>(data)[place(spec, n)];
  }
  float (*function_)(float, float);
  bool is_neg_;
  sdk::TensorSpec result_;
  std::vector<sdk::TensorSpec> operands_;
};

float (*find_function(std::string_view op))(float, float) {
  if (op == "aten.add.Tensor") return [](float a, float b) { return a + b; };
  if (op == "aten.mul.Tensor") return [](float a, float b) { return a * b; };
  if (op == "aten.relu") return [](float a, float) { return a > 0 ? a : 0; };
  if (op == "aten.neg") return [](float a, float) { return -a; };
  return nullptr;
}

bool takes(const sdk::NodeView& node) {
  if (node.is_view()) return !asked("no_views");
  return find_function(node.op()) != nullptr;
}

class ScriptedExecutable final : public sdk::Executable {
 public:
  explicit ScriptedExecutable(std::shared_ptr<sdk::ProgramExecutable> program)
      : program_(std::move(program)) {
    inputs = program_->inputs;
    outputs = program_->outputs;
    flags = BP_EXECUTABLE_ONE_CALL;
#if defined(SCRIPTED_SERIAL)
    if (asked("lends")) {
      flags |= BP_EXECUTABLE_SYNCHRONOUS | BP_EXECUTABLE_LENDING;
      program_->lend_intermediates();
    }
#endif
  }
  sdk::Result<std::uint64_t> workspace_bytes(std::span<const std::int64_t> dims) override {
    SCRIPTED_ENTER();
    return program_->workspace_bytes(dims);
  }
  Status execute(const sdk::Execution& call) override {
    SCRIPTED_ENTER();
    const Alone one_call(inside_);
    BP_SDK_RETURN_IF_ERROR(one_call.check());
    if (asked("execute_fails")) return {BP_INTERNAL, "asked to fail"};
    if (asked("not_now")) return {BP_UNSUPPORTED, "not at these sizes"};
    if (asked("full") && allocated_bytes > 1024) return {BP_OUT_OF_MEMORY, "the device is full"};
    auto kept = std::make_shared<sdk::KeptExecution>(call, inputs.size(), outputs.size(),
                                                     program_->graph().dim_class_count());
    for (const bp_binding& binding : kept->bindings())
      BP_SDK_RETURN_IF_ERROR(check_range(binding.range));
    const bp_lending* const lending = call.raw().lending;  // in host memory: nothing is queued then
    kept->args().lending = lending;
    if (asked("gives_back_early") && lending != nullptr)
      for (std::uint32_t i = 0; i < inputs.size(); ++i) lending->input_done(lending->user, i);
    if (lending != nullptr) BP_SDK_RETURN_IF_ERROR(misuse(*lending));
    return submit(call.order(), false, [kept, program = program_]() -> Status {
      if (asked("no_room")) return {BP_OUT_OF_MEMORY, "no room for the work"};
      if (asked("trapped")) return {BP_INTERNAL, "the kernel trapped"};
      return program->execute(kept->call());
    });
  }

 private:
  Status misuse(const bp_lending& lending) {
    const bp_lending* const old = std::exchange(old_lending_, &lending);
    if (asked("lends_late") && old != nullptr && old != &lending) {
      bp_range range{};
      if (bp_error* error = old->lend_workspace(old->user, 64, BP_WORKSPACE_SCRATCH, &range))
        return Status::adopt(error);
    }
    if (asked("inputs_done_twice"))
      for (int i = 0; i < 2; ++i) lending.input_done(lending.user, 0);
    const bool part = asked("gives_back_part"), twice = asked("gives_back_twice");
    const bool foreign = asked("gives_back_foreign"), keeps = asked("keeps_lent");
    if (!part && !twice && !foreign && !keeps) return {};
    bp_range range{};
    if (bp_error* error = lending.lend_workspace(lending.user, 64, BP_WORKSPACE_SCRATCH, &range))
      return Status::adopt(error);
    if (keeps) return {};
    bp_range given = range;
    std::uint64_t own[8] = {};
    if (part) given.size_bytes = 32;
    if (foreign) given.host = own;
    for (int i = 0; i < (twice ? 2 : 1); ++i)
      lending.workspace_done(lending.user, &given, BP_WORKSPACE_SCRATCH);
    if (part || foreign) lending.workspace_done(lending.user, &range, BP_WORKSPACE_SCRATCH);
    return {};
  }

  std::shared_ptr<sdk::ProgramExecutable> program_;
  const bp_lending* old_lending_ = nullptr;
  std::atomic<int> inside_{0};
};

Status fault(std::string_view message, const sdk::NodeView& node) {
  auto args = sdk::make<bp_error_args>();
  args.code = asked("of_this_form") ? BP_UNSUPPORTED : BP_INTERNAL;
  args.message = sdk::raw(message);
  const std::uint32_t id = node.id();
  if (asked("names_it")) {
    args.node_ids = &id;
    args.node_count = 1;
  }
  return Status::adopt(sdk::host().error_create(sdk::host().host, &args));
}

class ScriptedDevice final : public sdk::Device {
 public:
  sdk::DeviceInfo info() const override {
    sdk::DeviceInfo info;
    info.name = "Scripted device";
    info.architecture = "scripted";
    if (asked("host_memory")) info.flags = BP_DEVICE_BINDS_HOST_MEMORY;
    info.alignment_bytes = kAlignment;
    return info;
  }
  sdk::Result<sdk::Buffer> allocate(std::size_t bytes) override {
    SCRIPTED_ENTER();
    allocated_bytes += bytes;
    auto buffer = sdk::host_buffer(bytes, [bytes] { allocated_bytes -= bytes; });
    if (!buffer.ok()) allocated_bytes -= bytes;
    return buffer;
  }
  Status copy(const sdk::Copy& copy, const sdk::Order& order) override {
    SCRIPTED_ENTER();
    for (const sdk::Range* range : {&copy.source, &copy.target})
      if (range->buffer() != nullptr && copy.bytes() != 0 &&
          range->offset_bytes() % kAlignment != 0)
        return {BP_INVALID_ARGUMENT, "a copy at an unaligned offset"};
    const bool is_early =
        asked("early_event") && copy.target.buffer() == nullptr && copy.bytes() != 0;
    const bool is_queued = order.stream() != nullptr;
    const auto work = [copy, is_queued]() -> Status {
      if (is_queued && asked("failed_copy")) return {BP_INTERNAL, "the bus is broken"};
      const std::size_t torn = asked("torn_copy") ? std::min<std::size_t>(copy.bytes(), 4) : 0;
      if (copy.bytes() != 0)
        std::memmove(copy.target.data(), copy.source.data(), copy.bytes() - torn);
      return {};
    };
    return submit(order, true, work, is_early);
  }
  sdk::Claims claims(const sdk::GraphView& graph) override {
#if defined(SCRIPTED_SERIAL)
    const Alone alone(device_calls);
    if (!alone.check().ok()) return {};
#endif
    const auto decide = [](const sdk::NodeView& node) -> std::optional<sdk::Refusal> {
      if (takes(node)) return std::nullopt;
      return sdk::Refusal{0, BP_REFUSED_OP, "no kernel for " + std::string(node.op())};
    };
    sdk::Claims claims = sdk::claim_where(graph, decide);
    for (sdk::Claims::Set& set : claims.sets) set.divisible = !asked("whole");
    return claims;
  }
  sdk::Result<std::unique_ptr<sdk::Executable>> compile(const sdk::Subgraph& graph,
                                                        const sdk::CompileOptions&) override {
    SCRIPTED_ENTER();
    if (graph.outputs().empty()) return Status(BP_INVALID_ARGUMENT, "a graph without outputs");
    if (asked("full_compile") && allocated_bytes > 1024)
      return Status(BP_OUT_OF_MEMORY, "no room for code");
    bool has_relu = false;
    for (std::size_t i = 0; i < graph.size(); ++i) {
      const std::string op(graph[i].op());
      if (!takes(graph[i])) return Status(BP_INVALID_ARGUMENT, op + " was not claimed");
      if (op == "aten.relu" && asked("no_relu")) return fault("relu is broken today", graph[i]);
      has_relu = has_relu || op == "aten.relu";
      if (op == "aten.neg" && has_relu && asked("no_pair"))
        return fault("no neg beside a relu", graph[i]);
    }
    const auto factory =
        [](const sdk::StepContext& step) -> sdk::Result<std::unique_ptr<sdk::Kernel>> {
      if (step.step().is_copy())
        return std::make_unique<Elementwise>(step, [](float a, float) { return a; });
      return std::make_unique<Elementwise>(step, find_function(step.node().op()));
    };
    auto made = std::make_unique<ScriptedExecutable>(std::make_shared<sdk::ProgramExecutable>(
        graph, sdk::step_per_node(graph), factory, std::vector<bp_layout>{}));
    if (asked("opaque_output"))
      for (bp_io_contract& output : made->outputs) output.layout = {BP_LAYOUT_OPAQUE, 0, 7};
    return made;
  }
#if !defined(SCRIPTED_SERIAL)
  sdk::Result<std::unique_ptr<sdk::Stream>> create_stream() override {
    return std::make_unique<LazyStream>();
  }
  sdk::Result<std::unique_ptr<sdk::Event>> create_event() override {
    if (asked("event_fails")) return Status(BP_RESOURCE_BUSY, "no events left");
    return std::make_unique<LazyEvent>();
  }
#endif
};

}  // namespace backplane::scripted

#if defined(SCRIPTED_SERIAL)
BP_NOTE(BP_ABI_VERSION, BP_ABI_VERSION, "scripted_serial", "Backplane tests", "0.1",
        backplane::sdk::kSanitizer);
extern "C" BP_EXPORT void backplane_plugin_negotiate(bp_negotiation* negotiation) {
  static bp_plugin_api table;
  backplane::sdk::Table<backplane::scripted::ScriptedDevice>::negotiate(negotiation);
  if (negotiation->result != BP_NEGOTIATE_OK) return;
  table = *negotiation->api;
  table.flags |= BP_PLUGIN_ONE_CALL_PER_DEVICE;
  negotiation->api = &table;
}
#else
BP_PLUGIN("scripted", "Backplane tests", "0.1", backplane::scripted::ScriptedDevice)
#endif
