// A plugin that claims everything, computes nothing, and does in one entry what $BACKPLANE_SABOTAGE
// says, read at each call: "execute throw". "load" is its constructor. With
// $BACKPLANE_SABOTAGE_HOST_MEMORY its device works in the host's memory.
//
//   throw, throw42     lets an exception out, or a number
//   segv, bus, ill, fpe, abort, overflow   ends the process: overflow by a recursion without end
//   thread             ends it in a thread of its own; thread_abort, thread_throw: by abort(), by an
//                      exception that nobody catches
//   at_exit            ends it by abort() while the process ends
//   what               throws an exception whose text ends the process
//   leave              ends the thread
//   exit, _exit        calls them
//   hang               sleeps for good; nap: for a while
//   null               succeeds and answers nothing; where an entry answers nothing, does nothing
//   error              fails with a plain error; lost: with BP_DEVICE_LOST; wild: with a pointer
//                      that is no error; released: with one that it has released
//   cancelled          fails with BP_CANCELLED
//   python             leaves an error of Python set, where there is one
//   late               uses the sink and the token of calls that have ended, then fails
//   small, lends       a contract that is too short; one that lends and does not wait
//   vast, near, wide   a workspace of all bytes there are, or of a few less; a stride as large
//   again              answers the object that it made last
//   binary, long       a name that is no text; an error whose message has no end
//   crowd              an error about more nodes than there is memory
//   twice              releases an error and bytes twice, then goes on
#include <backplane/plugin.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#define BROKEN_CASE 0  // leaves the entry to this file
#define TEST_PLUGIN_NAME "sabotage"
#include "core/runtime/testing/good_plugin.c"  // NOLINT(bugprone-suspicious-include)

struct bp_executable {
  std::vector<bp_io_contract> io;
};

namespace {

volatile int zero = 0;

// Not a tail call, and not seen through.
__attribute__((noinline)) int recurse(int depth) {
  volatile char page[4096];
  page[0] = static_cast<char>(depth);
  return recurse(depth + 1) + page[0];
}

struct Speechless : std::exception {
  const char* what() const noexcept override { std::terminate(); }
};

void end_by(std::string_view action) {
  if (action == "segv") *reinterpret_cast<volatile int*>(static_cast<std::uintptr_t>(zero)) = 1;
  if (action == "bus") std::raise(SIGBUS);
  if (action == "ill") __builtin_trap();
  if (action == "fpe") std::raise(SIGFPE);
  if (action == "abort") std::abort();
  if (action == "overflow") std::exit(recurse(0));
  if (action == "thread") std::thread([] { end_by("segv"); }).join();
  if (action == "thread_abort") std::thread([] { std::abort(); }).join();
  if (action == "thread_throw") std::thread([] { throw std::runtime_error("alone"); }).join();
  if (action == "at_exit") std::atexit([] { std::abort(); });
  if (action == "what") throw Speechless();
  if (action == "leave") ::pthread_exit(nullptr);
  if (action == "exit") std::exit(7);
  if (action == "_exit") ::_exit(7);
}

// What is left to be done: "null", "error", ... or nothing.
std::string_view enter(std::string_view entry) {
  const char* const text = std::getenv("BACKPLANE_SABOTAGE");
  const std::string_view asked = text != nullptr ? text : "";
  if (asked.substr(0, asked.find(' ')) != entry) return {};
  const std::string_view action = asked.substr(std::min(asked.size(), entry.size() + 1));
  end_by(action);
  if (action == "throw") throw std::runtime_error("the vendor's code gave up");
  if (action == "throw42") throw 42;
  using std::chrono::milliseconds;
  while (action == "hang") std::this_thread::sleep_for(milliseconds(1000));
  if (action == "nap") std::this_thread::sleep_for(milliseconds(600));
  return action;
}

// Kept from calls that have ended.
bp_claim_sink* old_sink = nullptr;
const bp_cancel* old_cancel = nullptr;

bp_error* use_late() {
  if (old_cancel != nullptr && host->is_cancelled(old_cancel) == 0) std::abort();
  return host->refuse_add(old_sink, 0, BP_REFUSED_OP, {nullptr, 0});
}
void leave_python_error() {
  const auto find = [](const char* name) { return ::dlsym(RTLD_DEFAULT, name); };
  const auto ensure = reinterpret_cast<int (*)()>(find("PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(find("PyGILState_Release"));
  const auto set = reinterpret_cast<void (*)(void*, const char*)>(find("PyErr_SetString"));
  const auto* const kind = static_cast<void**>(find("PyExc_ValueError"));
  if (ensure == nullptr) return;
  const int state = ensure();
  set(*kind, "left by the vendor");
  release(state);
}
void release_twice() {
  bp_error* const error = fail(BP_INTERNAL, "not told", __LINE__);
  bp_byte_sink* const bytes = host->bytes_create(host->host);
  for (int i = 0; i < 2; ++i) {
    host->error_release(host->host, error);
    host->bytes_release(bytes);
  }
}

bp_error* failure(std::string_view action) {
  static std::uint64_t memory[64] = {};
  if (action == "late") return use_late();
  if (action == "twice") release_twice();
  if (action == "python") leave_python_error();
  if (action == "cancelled") return fail(BP_CANCELLED, "asked to be cancelled", __LINE__);
  if (action == "released") {
    bp_error* const error = fail(BP_INTERNAL, "not told", __LINE__);
    host->error_release(host->host, error);
    return error;
  }
  if (action == "long") {
    bp_error_args args{};
    args.struct_size = sizeof args;
    args.code = BP_INTERNAL;
    args.message = {"short", std::size_t{1} << 40};
    return host->error_create(host->host, &args);
  }
  if (action == "crowd") {
    static const std::uint32_t id = 0;
    bp_error_args args{};
    args.struct_size = sizeof args;
    args.code = BP_INTERNAL;
    args.node_ids = &id;
    args.node_count = std::size_t{1} << 61;
    return host->error_create(host->host, &args);
  }
  if (action == "error") return fail(BP_INTERNAL, "asked to fail", __LINE__);
  if (action == "lost") return fail(BP_DEVICE_LOST, "asked to be lost", __LINE__);
  if (action == "wild") return reinterpret_cast<bp_error*>(memory);
  return nullptr;
}

// Of an entry that may fail, before it does anything.
#define SABOTAGE(entry)                                        \
  do {                                                         \
    const std::string_view action = enter(entry);              \
    if (action == "null") return nullptr;                      \
    if (bp_error* const error = failure(action)) return error; \
  } while (false)

[[maybe_unused]] __attribute__((constructor)) void at_load() { (void)enter("load"); }

std::uint32_t count_devices(bp_plugin* plugin) {
  if (enter("device_count") == "null") return 0;
  return device_count(plugin);
}
bp_error* describe_device(bp_plugin* plugin, std::uint32_t index, bp_device_info* out_info) {
  SABOTAGE("device_describe");
  bp_error* const error = device_describe(plugin, index, out_info);
  if (error == nullptr && std::getenv("BACKPLANE_SABOTAGE_HOST_MEMORY") != nullptr)
    out_info->flags |= BP_DEVICE_BINDS_HOST_MEMORY;
  const std::string_view action = enter("device_describe");
  if (action == "binary") out_info->name = {"\xff\xfe device", 9};
  static const bp_device_rate rates[2] = {};
  if (action == "wide") {
    out_info->rates = rates;
    out_info->rate_count = 2;
    out_info->rate_stride = SIZE_MAX / 4;
  }
  if (action == "vast") out_info->memory_bytes = UINT64_MAX;
  return error;
}
bp_error* open_device(bp_plugin* plugin, std::uint32_t index, bp_device** out_device) {
  SABOTAGE("device_open");
  return device_open(plugin, index, out_device);
}
void close_device(bp_device*) { (void)enter("device_close"); }
// Null where the last one is gone.
bp_buffer* last_buffer = nullptr;
bp_executable* last_executable = nullptr;

bp_error* create(bp_device* device, std::uint64_t bytes, bp_buffer** out_buffer) {
  SABOTAGE("buffer_create");
  if (last_buffer != nullptr && enter("buffer_create") == "again") {
    *out_buffer = last_buffer;
    return nullptr;
  }
  bp_error* const error = buffer_create(device, bytes, out_buffer);
  if (error == nullptr) last_buffer = *out_buffer;
  return error;
}
void release(bp_buffer* buffer) {
  if (buffer == last_buffer) last_buffer = nullptr;
  buffer_release(buffer);
  (void)enter("buffer_release");
}
bp_error* copy_bytes(bp_device* device, const bp_copy_args* args) {
  SABOTAGE("copy");
  return copy(device, args);
}
bp_error* claim_all(bp_plugin*, const bp_device_info*, const bp_graph* graph, bp_claim_sink* sink) {
  SABOTAGE("claims");
  old_sink = sink;
  for (std::size_t i = 0; i < graph->node_count; ++i) {
    bp_claim claim{};
    claim.struct_size = sizeof claim;
    claim.node_ids = &bp_graph_node(graph, i)->id;
    claim.node_count = 1;
    claim.flags = BP_CLAIM_DIVISIBLE;
    if (bp_error* const error = host->claim_add(sink, &claim)) return error;
  }
  return nullptr;
}
bp_error* compile_nothing(bp_plugin*, const bp_compile_args* args, bp_executable** out) {
  SABOTAGE("compile");
  old_cancel = args->cancel;
  if (last_executable != nullptr && enter("compile") == "again") {
    *out = last_executable;
    return nullptr;
  }
  bp_io_contract io{};
  io.layout.kind = BP_LAYOUT_STRIDED;
  *out = new bp_executable{
      std::vector<bp_io_contract>(args->graph->input_count + args->graph->output_count, io)};
  last_executable = *out;
  return nullptr;
}
bp_error* describe(bp_executable* executable, bp_executable_info* out_info) {
  SABOTAGE("executable_describe");
  out_info->inputs = out_info->outputs = executable->io.data();
  out_info->io_stride = sizeof(bp_io_contract);
  const std::string_view action = enter("executable_describe");
  if (action == "small") out_info->struct_size = 8;
  if (action == "vast") out_info->workspace_bytes = UINT64_MAX;
  if (action == "near") out_info->workspace_bytes = UINT64_MAX - 100;
  if (action == "wide") out_info->io_stride = SIZE_MAX / 4;
  if (action == "lends") out_info->flags |= BP_EXECUTABLE_LENDING;
  return nullptr;
}
void release_executable(bp_executable* executable) {
  if (executable == last_executable) last_executable = nullptr;
  delete executable;
  (void)enter("executable_release");
}
bp_error* execute_nothing(bp_executable*, const bp_execute_args*) {
  SABOTAGE("execute");
  return nullptr;
}
void shut_down_or_throw(bp_plugin*) { (void)enter("shutdown"); }

}  // namespace

void backplane_plugin_negotiate(bp_negotiation* negotiation) {
  if (enter("negotiate") == "null") return;
  answer(negotiation);
  table.device_count = count_devices;
  table.device_describe = describe_device;
  table.device_open = open_device;
  table.device_close = close_device;
  table.buffer_create = create;
  table.buffer_release = release;
  table.copy = copy_bytes;
  table.claims = claim_all;
  table.compile = compile_nothing;
  table.executable_describe = describe;
  table.executable_release = release_executable;
  table.execute = execute_nothing;
  table.shutdown = shut_down_or_throw;
}
