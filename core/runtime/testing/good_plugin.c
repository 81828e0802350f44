/* The smallest plugin that works: one device in host memory, nothing claimed, required entries
 * only. broken_plugin.cc includes this file and spoils one thing, so it is C that is also C++. */
#include <backplane/plugin.h>
#include <stdlib.h>
#include <string.h>

#ifndef TEST_PLUGIN_NAME
#define TEST_PLUGIN_NAME "good"
#endif
#ifndef TEST_NOTE_MIN
#define TEST_NOTE_MIN BP_ABI_VERSION
#define TEST_NOTE_MAX BP_ABI_VERSION
#endif

#ifndef TEST_NOTE_SANITIZER
#if defined(__SANITIZE_ADDRESS__)
#define TEST_NOTE_SANITIZER BP_SANITIZER_ADDRESS
#elif defined(__SANITIZE_THREAD__)
#define TEST_NOTE_SANITIZER BP_SANITIZER_THREAD
#else
#define TEST_NOTE_SANITIZER BP_SANITIZER_NONE
#endif
#endif

#ifndef TEST_WITHOUT_NOTE
BP_NOTE(TEST_NOTE_MIN, TEST_NOTE_MAX, TEST_PLUGIN_NAME, "Backplane tests", "0.1",
        TEST_NOTE_SANITIZER);
#endif

enum { kMemoryBytes = 1 << 20 }; /* of the device: more is out of memory */

static const bp_host_api* host;

struct bp_plugin {
  int unused;
};
struct bp_device {
  uint64_t live_bytes;
};
struct bp_buffer {
  bp_device* device;
  uint64_t bytes;
  unsigned char* memory;
};

static bp_plugin the_plugin;
static bp_device the_device;

static bp_error* fail(bp_code code, const char* message, uint32_t line) {
  bp_error_args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.code = code;
  args.line = line;
  args.message.data = message;
  args.message.size = strlen(message);
  args.file.data = "good_plugin.c";
  args.file.size = 13;
  return host->error_create(host->host, &args);
}

static bp_string text(const char* literal) {
  bp_string result;
  result.data = literal;
  result.size = strlen(literal);
  return result;
}

static uint32_t device_count(bp_plugin* plugin) {
  (void)plugin;
  return 1;
}

static bp_error* device_describe(bp_plugin* plugin, uint32_t index, bp_device_info* out_info) {
  bp_device_info info;
  size_t capacity = out_info->struct_size;
  (void)plugin;
  if (index != 0) return fail(BP_INVALID_ARGUMENT, "there is one device", __LINE__);
  memset(&info, 0, sizeof(info));
  info.struct_size = capacity < sizeof(info) ? capacity : sizeof(info);
  info.kind = BP_DEVICE_CPU;
  info.name = text("Test device");
  info.memory_bytes = kMemoryBytes;
  info.buffer_alignment_bytes = 16;
  memcpy(out_info, &info, info.struct_size);
  return NULL;
}

static bp_error* device_open(bp_plugin* plugin, uint32_t index, bp_device** out_device) {
  (void)plugin;
  (void)index;
  the_device.live_bytes = 0;
  *out_device = &the_device;
  return NULL;
}

static void device_close(bp_device* device) { (void)device; }

static bp_error* buffer_create(bp_device* device, uint64_t bytes, bp_buffer** out_buffer) {
  bp_buffer* buffer;
  if (bytes > kMemoryBytes - device->live_bytes) {
    return fail(BP_OUT_OF_MEMORY, "the device is full", __LINE__);
  }
  buffer = (bp_buffer*)malloc(sizeof(*buffer));
  if (buffer == NULL) return fail(BP_OUT_OF_MEMORY, "the host is full", __LINE__);
  buffer->device = device;
  buffer->bytes = bytes;
  buffer->memory = (unsigned char*)malloc(bytes ? (size_t)bytes : 1);
  if (buffer->memory == NULL) {
    free(buffer);
    return fail(BP_OUT_OF_MEMORY, "the host is full", __LINE__);
  }
  device->live_bytes += bytes;
  *out_buffer = buffer;
  return NULL;
}

static void buffer_release(bp_buffer* buffer) {
  if (buffer == NULL) return;
  buffer->device->live_bytes -= buffer->bytes;
  free(buffer->memory);
  free(buffer);
}

static unsigned char* bytes_of(const bp_range* range) {
  unsigned char* base = range->buffer ? range->buffer->memory : (unsigned char*)range->host;
  if (range->buffer && (range->offset_bytes > range->buffer->bytes ||
                        range->size_bytes > range->buffer->bytes - range->offset_bytes)) {
    return NULL;
  }
  return base + range->offset_bytes;
}

static bp_error* copy(bp_device* device, const bp_copy_args* args) {
  unsigned char* source = bytes_of(&args->source);
  unsigned char* target = bytes_of(&args->target);
  (void)device;
  if (source == NULL || target == NULL) {
    return fail(BP_INVALID_ARGUMENT, "the range leaves its buffer", __LINE__);
  }
  memmove(target, source, (size_t)args->target.size_bytes);
  return NULL;
}

static bp_error* claims(bp_plugin* plugin, const bp_device_info* info, const bp_graph* graph,
                        bp_claim_sink* sink) {
  size_t i;
  (void)plugin;
  (void)info;
  for (i = 0; i < graph->node_count; ++i) {
    bp_error* error = host->refuse_add(sink, bp_graph_node(graph, i)->id, BP_REFUSED_OP,
                                       text("this plugin computes nothing"));
    if (error != NULL) return error;
  }
  return NULL;
}

static bp_error* compile(bp_plugin* plugin, const bp_compile_args* args,
                         bp_executable** out_executable) {
  (void)plugin;
  (void)args;
  (void)out_executable;
  return fail(BP_UNSUPPORTED, "this plugin computes nothing", __LINE__);
}

static bp_error* executable_describe(bp_executable* executable, bp_executable_info* out_info) {
  (void)executable;
  (void)out_info;
  return fail(BP_UNSUPPORTED, "this plugin computes nothing", __LINE__);
}

static void executable_release(bp_executable* executable) { (void)executable; }

static bp_error* execute(bp_executable* executable, const bp_execute_args* args) {
  (void)executable;
  (void)args;
  return fail(BP_UNSUPPORTED, "this plugin computes nothing", __LINE__);
}

static void shut_down(bp_plugin* plugin) { (void)plugin; }

static bp_plugin_api table;

static void fill_table(void) {
  memset(&table, 0, sizeof(table));
  table.struct_size = sizeof(table);
  table.version = BP_ABI_VERSION;
  table.device_count = device_count;
  table.device_describe = device_describe;
  table.device_open = device_open;
  table.device_close = device_close;
  table.buffer_create = buffer_create;
  table.buffer_release = buffer_release;
  table.copy = copy;
  table.claims = claims;
  table.compile = compile;
  table.executable_describe = executable_describe;
  table.executable_release = executable_release;
  table.execute = execute;
  table.shutdown = shut_down;
}

static void answer(bp_negotiation* negotiation) {
  fill_table();
  host = negotiation->host;
  negotiation->plugin_min = TEST_NOTE_MIN;
  negotiation->plugin_max = TEST_NOTE_MAX;
  negotiation->chosen =
      negotiation->host_max < TEST_NOTE_MAX ? negotiation->host_max : TEST_NOTE_MAX;
  negotiation->api = &table;
  negotiation->plugin = &the_plugin;
  negotiation->result = BP_NEGOTIATE_OK;
}

#ifndef BROKEN_CASE
void backplane_plugin_negotiate(bp_negotiation* negotiation) { answer(negotiation); }
#endif
