// A plugin that claims everything, computes nothing, and lets an exception out of the entry that
// $BACKPLANE_THROWS names, read at each call; "execute 42" throws a number.
#include <backplane/plugin.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#define BROKEN_CASE 0  // leaves the entry to this file
#define TEST_PLUGIN_NAME "throwing"
#include "core/runtime/testing/good_plugin.c"  // NOLINT(bugprone-suspicious-include)

struct bp_executable {
  std::vector<bp_io_contract> io;
};

namespace {

void enter(const char* entry) {
  const char* const asked = std::getenv("BACKPLANE_THROWS");
  if (asked == nullptr) return;
  if (std::strcmp(asked, entry) == 0) throw std::runtime_error("the vendor's code gave up");
  if (std::string(entry) + " 42" == asked) throw 42;
}

std::uint32_t count_devices(bp_plugin* plugin) {
  enter("device_count");
  return device_count(plugin);
}
bp_error* describe_device(bp_plugin* plugin, std::uint32_t index, bp_device_info* out_info) {
  enter("device_describe");
  return device_describe(plugin, index, out_info);
}
bp_error* open_device(bp_plugin* plugin, std::uint32_t index, bp_device** out_device) {
  enter("device_open");
  return device_open(plugin, index, out_device);
}
void close_device(bp_device*) { enter("device_close"); }
bp_error* create(bp_device* device, std::uint64_t bytes, bp_buffer** out_buffer) {
  enter("buffer_create");
  return buffer_create(device, bytes, out_buffer);
}
void release(bp_buffer* buffer) {
  buffer_release(buffer);
  enter("buffer_release");
}
bp_error* copy_bytes(bp_device* device, const bp_copy_args* args) {
  enter("copy");
  return copy(device, args);
}
bp_error* claim_all(bp_plugin*, const bp_device_info*, const bp_graph* graph, bp_claim_sink* sink) {
  enter("claims");
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
  enter("compile");
  bp_io_contract io{};
  io.layout.kind = BP_LAYOUT_STRIDED;
  *out = new bp_executable{
      std::vector<bp_io_contract>(args->graph->input_count + args->graph->output_count, io)};
  return nullptr;
}
bp_error* describe(bp_executable* executable, bp_executable_info* out_info) {
  enter("executable_describe");
  out_info->inputs = out_info->outputs = executable->io.data();
  out_info->io_stride = sizeof(bp_io_contract);
  return nullptr;
}
void release_executable(bp_executable* executable) {
  delete executable;
  enter("executable_release");
}
bp_error* execute_nothing(bp_executable*, const bp_execute_args*) {
  enter("execute");
  return nullptr;
}
void shut_down_or_throw(bp_plugin*) { enter("shutdown"); }

}  // namespace

void backplane_plugin_negotiate(bp_negotiation* negotiation) {
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
