/* A plugin in C alone, over the headers of the ABI and nothing else: add, mul, neg and relu of
 * dense float32 tensors of one shape, in the host's memory. The guide says how to build it. */
#include <backplane/plugin.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define OLDEST BP_VERSION(0, 2)
BP_NOTE(OLDEST, BP_ABI_VERSION, "plain", "Backplane examples", "1.0", BP_SANITIZER_NONE);

struct bp_plugin {
  const bp_host_api* host;
};
struct bp_device {
  int unused;
};
struct bp_buffer {
  char* data;
  uint64_t bytes;
};
static bp_plugin the_plugin;

/* ---- Answers ------------------------------------------------------------------------------- */

static bp_string text(const char* s) { return (bp_string){s, strlen(s)}; }

static bp_error* fail(bp_code code, const char* message) {
  const bp_error_args args = {.struct_size = sizeof args, .code = code, .message = text(message)};
  return the_plugin.host->error_create(the_plugin.host->host, &args);
}
/* Null where a peer's struct has a size that can be. */
static bp_error* check_size(size_t size, size_t least) {
  if (size >= least && size <= BP_STRUCT_SIZE_LIMIT) return NULL;
  return fail(BP_INVALID_ARGUMENT, "a struct of an impossible size");
}
/* Of a struct that grows: as much as both sides know. */
static void give(void* out, size_t capacity, const void* own, size_t size) {
  const size_t both = capacity < size ? capacity : size;
  memcpy(out, own, both);
  memcpy(out, &both, sizeof both);
}

/* ---- Device, memory ------------------------------------------------------------------------ */

static uint32_t device_count(bp_plugin* plugin) {
  (void)plugin;
  return 1;
}
static bp_error* device_describe(bp_plugin* plugin, uint32_t index, bp_device_info* out) {
  (void)plugin;
  bp_error* error = check_size(out->struct_size, offsetof(bp_device_info, torch_device));
  if (error != NULL) return error;
  if (index != 0) return fail(BP_INVALID_ARGUMENT, "there is one device");
  const bp_device_info own = {.kind = BP_DEVICE_CPU,
                              .flags = BP_DEVICE_BINDS_HOST_MEMORY,
                              .name = text("Plain C"),
                              .architecture = text("c11"),
                              .driver = text("1.0"),
                              .memory_bytes = UINT64_C(1) << 32,
                              .buffer_limit_bytes = UINT64_C(1) << 32,
                              .buffer_alignment_bytes = 64,
                              .offset_alignment_bytes = 64};
  give(out, out->struct_size, &own, sizeof own);
  return NULL;
}
static bp_error* device_open(bp_plugin* plugin, uint32_t index, bp_device** out) {
  (void)plugin;
  if (index != 0) return fail(BP_INVALID_ARGUMENT, "there is one device");
  *out = calloc(1, sizeof **out);
  return *out != NULL ? NULL : fail(BP_OUT_OF_MEMORY, "no memory for a device");
}
static void device_close(bp_device* device) { free(device); }

static bp_error* buffer_create(bp_device* device, uint64_t bytes, bp_buffer** out) {
  (void)device;
  bp_buffer* made = bytes <= UINT64_C(1) << 32 ? malloc(sizeof *made) : NULL;
  if (made != NULL) {
    made->bytes = bytes;
    made->data = aligned_alloc(64, bytes / 64 * 64 + 64);
    if (made->data != NULL) {
      *out = made;
      return NULL;
    }
  }
  free(made);
  return fail(BP_OUT_OF_MEMORY, "no memory for a buffer");
}
static void buffer_release(bp_buffer* buffer) {
  if (buffer == NULL) return;
  free(buffer->data);
  free(buffer);
}
/* Null where the range has not so many bytes. */
static char* address(const bp_range* range, uint64_t bytes) {
  if (range->size_bytes < bytes) return NULL;
  if (range->buffer == NULL) return range->host ? (char*)range->host + range->offset_bytes : NULL;
  const uint64_t left = range->buffer->bytes;
  if (range->offset_bytes > left || bytes > left - range->offset_bytes) return NULL;
  return range->buffer->data + range->offset_bytes;
}
static bp_error* copy(bp_device* device, const bp_copy_args* args) {
  (void)device;
  bp_error* error = check_size(args->struct_size, sizeof *args);
  if (error != NULL) return error;
  const uint64_t bytes = args->source.size_bytes;
  if (args->target.size_bytes != bytes) return fail(BP_INVALID_ARGUMENT, "a copy of two sizes");
  if (bytes == 0) return NULL;
  const char* from = address(&args->source, bytes);
  char* to = address(&args->target, bytes);
  if (from == NULL || to == NULL) return fail(BP_INVALID_ARGUMENT, "a copy beyond its memory");
  memmove(to, from, bytes);
  return NULL;
}

/* ---- Claims -------------------------------------------------------------------------------- */

typedef enum { ADD, MUL, NEG, RELU, NONE } operation;

static operation operation_of(const bp_graph* graph, const bp_node* node) {
  static const char* const names[] = {"aten.add.Tensor", "aten.mul.Tensor", "aten.neg",
                                      "aten.relu"};
  const bp_op* op = bp_graph_op(graph, node->op);
  for (int i = 0; i < NONE && op->version == 1; ++i)
    if (op->name.size == strlen(names[i]) && memcmp(op->name.data, names[i], op->name.size) == 0)
      return (operation)i;
  return NONE;
}
static const bp_value* operand(const bp_graph* graph, const bp_node* node, uint32_t i) {
  const uint32_t index = graph->indices[node->first_operand + i];
  return index == BP_NONE ? NULL : bp_graph_value(graph, index);
}
/* A float32 tensor with the dims of `like`, row-major and without gaps. */
static bool is_plain(const bp_graph* graph, const bp_value* v, const bp_value* like) {
  const uint64_t known = BP_VALUE_CONSTANT | BP_VALUE_STATIC;
  if (v == NULL || v->dtype.code != BP_DTYPE_FLOAT || v->dtype.bits != 32 || v->dtype.lanes != 1 ||
      v->layout.kind != BP_LAYOUT_STRIDED || (v->flags & ~known) != 0 || v->rank != like->rank)
    return false;
  int64_t dense = 1;
  for (uint32_t d = v->rank; d-- > 0;) {
    const bp_dim dim = graph->dims[v->first_dim + d], stride = graph->strides[v->first_dim + d];
    if (dim < 0 || dim != graph->dims[like->first_dim + d]) return false; /* < 0: it varies */
    if (dim > 1 && stride != dense) return false;
    dense *= dim;
  }
  return true;
}
/* 0: taken. */
static bp_refusal refusal_of(const bp_graph* graph, const bp_node* node) {
  const operation op = operation_of(graph, node);
  if (op == NONE) return BP_REFUSED_OP;
  if (node->effects != 0) return BP_REFUSED_OTHER;
  if (node->attribute_count != 0) return BP_REFUSED_ATTRIBUTE; /* alpha */
  if (node->result_count != 1 || node->operand_count != (op <= MUL ? 2u : 1u))
    return BP_REFUSED_OTHER;
  const uint32_t result = graph->indices[node->first_result];
  if (result == BP_NONE) return BP_REFUSED_OTHER;
  const bp_value* made = bp_graph_value(graph, result);
  bool plain = made->alias_of == BP_NONE && is_plain(graph, made, made);
  for (uint32_t i = 0; i < node->operand_count; ++i)
    plain = plain && is_plain(graph, operand(graph, node, i), made);
  return plain ? 0 : BP_REFUSED_SHAPE;
}

static bp_error* claims(bp_plugin* plugin, const bp_device_info* info, const bp_graph* graph,
                        bp_claim_sink* sink) {
  (void)info;
  bp_error* error = check_size(graph->struct_size, sizeof *graph);
  if (error != NULL) return error;
  uint32_t* ids = malloc(sizeof *ids * (graph->node_count + 1));
  if (ids == NULL) return fail(BP_OUT_OF_MEMORY, "no memory for claims");
  bp_claim claim = {.struct_size = sizeof claim, .node_ids = ids, .flags = BP_CLAIM_DIVISIBLE};
  for (size_t n = 0; n < graph->node_count && error == NULL; ++n) {
    const bp_node* node = bp_graph_node(graph, n);
    const bp_refusal refusal = refusal_of(graph, node);
    if (refusal == 0) {
      ids[claim.node_count++] = node->id;
    } else {
      error = plugin->host->refuse_add(sink, node->id, refusal,
                                       text("add, mul, neg and relu of float32 of one shape"));
    }
  }
  if (error == NULL && claim.node_count != 0) error = plugin->host->claim_add(sink, &claim);
  free(ids);
  return error;
}

/* ---- Executables --------------------------------------------------------------------------- */

/* Where a value lies: in an input, an output, the workspace or a constant of the executable. */
typedef struct {
  enum { NOWHERE, INPUT, OUTPUT, WORKSPACE, CONSTANT } kind;
  uint64_t at; /* number of the binding, or bytes */
} place;
typedef struct {
  operation op;
  size_t count;
  uint32_t operands[2], result; /* values */
} step;

struct bp_executable {
  step* steps;
  place* places;   /* by value */
  uint64_t* bytes; /* by value */
  uint32_t *inputs, *outputs;
  bp_io_contract* contracts;
  char* constants;
  size_t step_count, input_count, output_count;
  uint64_t workspace_bytes, constant_bytes;
};

static void executable_release(bp_executable* e) {
  if (e == NULL) return;
  free(e->steps);
  free(e->places);
  free(e->bytes);
  free(e->inputs);
  free(e->outputs);
  free(e->contracts);
  free(e->constants);
  free(e);
}

static uint64_t bytes_of(const bp_graph* graph, const bp_value* v) {
  uint64_t bytes = 4;
  for (uint32_t d = 0; d < v->rank; ++d) bytes *= (uint64_t)graph->dims[v->first_dim + d];
  return bytes;
}
static uint64_t take(uint64_t* end, uint64_t bytes) {
  const uint64_t at = *end;
  *end += (bytes + 63) / 64 * 64;
  return at;
}

/* Every value that a node reads or makes gets its place. */
static void place_values(bp_executable* e, const bp_graph* graph) {
  for (size_t i = 0; i < e->input_count; ++i) e->places[e->inputs[i]] = (place){INPUT, i};
  for (size_t i = e->output_count; i-- > 0;)
    if (e->places[e->outputs[i]].kind != INPUT) e->places[e->outputs[i]] = (place){OUTPUT, i};
  for (size_t s = 0; s < e->step_count; ++s) {
    const step* one = &e->steps[s];
    const uint32_t values[] = {one->operands[0], one->operands[1], one->result};
    for (int i = 0; i < 3; ++i) {
      place* where = &e->places[values[i]];
      if (where->kind != NOWHERE) continue;
      const bool constant = (bp_graph_value(graph, values[i])->flags & BP_VALUE_CONSTANT) != 0;
      where->kind = constant ? CONSTANT : WORKSPACE;
      where->at = take(constant ? &e->constant_bytes : &e->workspace_bytes, e->bytes[values[i]]);
    }
  }
}

static bp_error* compile(bp_plugin* plugin, const bp_compile_args* args, bp_executable** out) {
  (void)plugin;
  bp_error* error = check_size(args->struct_size, sizeof *args);
  if (error == NULL) error = check_size(args->graph->struct_size, sizeof *args->graph);
  if (error != NULL) return error;
  const bp_graph* graph = args->graph;
  for (size_t n = 0; n < graph->node_count; ++n)
    if (refusal_of(graph, bp_graph_node(graph, n)) != 0)
      return fail(BP_UNSUPPORTED, "a node that was not claimed");
  bp_executable* e = calloc(1, sizeof *e);
  if (e == NULL) return fail(BP_OUT_OF_MEMORY, "no memory for an executable");
  e->step_count = graph->node_count;
  e->input_count = graph->input_count;
  e->output_count = graph->output_count;
  const size_t bindings = e->input_count + e->output_count;
  e->steps = calloc(e->step_count + 1, sizeof *e->steps);
  e->places = calloc(graph->value_count + 1, sizeof *e->places);
  e->bytes = calloc(graph->value_count + 1, sizeof *e->bytes);
  e->inputs = calloc(e->input_count + 1, sizeof *e->inputs);
  e->outputs = calloc(e->output_count + 1, sizeof *e->outputs);
  e->contracts = calloc(bindings + 1, sizeof *e->contracts);
  if (!e->steps || !e->places || !e->bytes || !e->inputs || !e->outputs || !e->contracts) {
    executable_release(e);
    return fail(BP_OUT_OF_MEMORY, "no memory for an executable");
  }
  memcpy(e->inputs, graph->inputs, e->input_count * sizeof *e->inputs);
  memcpy(e->outputs, graph->outputs, e->output_count * sizeof *e->outputs);
  for (size_t i = 0; i < bindings; ++i) e->contracts[i].layout.kind = BP_LAYOUT_STRIDED;
  for (size_t n = 0; n < graph->node_count; ++n) {
    const bp_node* node = bp_graph_node(graph, n);
    step* s = &e->steps[n];
    s->op = operation_of(graph, node);
    s->result = graph->indices[node->first_result];
    for (uint32_t i = 0; i < 2; ++i) /* of one operand both are that */
      s->operands[i] = graph->indices[node->first_operand + i % node->operand_count];
    const uint32_t values[] = {s->operands[0], s->operands[1], s->result};
    for (int i = 0; i < 3; ++i)
      e->bytes[values[i]] = bytes_of(graph, bp_graph_value(graph, values[i]));
    s->count = e->bytes[s->result] / 4;
  }
  place_values(e, graph);
  e->constants = malloc(e->constant_bytes + 1);
  if (e->constants == NULL) {
    executable_release(e);
    return fail(BP_OUT_OF_MEMORY, "no memory for constants");
  }
  for (size_t v = 0; v < graph->value_count; ++v)
    if (e->places[v].kind == CONSTANT && e->bytes[v] != 0)
      memcpy(e->constants + e->places[v].at, bp_graph_value(graph, v)->data, e->bytes[v]);
  *out = e;
  return NULL;
}

static bp_error* executable_describe(bp_executable* e, bp_executable_info* out) {
  bp_error* error = check_size(out->struct_size, sizeof *out);
  if (error != NULL) return error;
  const bp_executable_info own = {.flags = BP_EXECUTABLE_SYNCHRONOUS,
                                  .inputs = e->contracts,
                                  .outputs = e->contracts + e->input_count,
                                  .io_stride = sizeof *e->contracts,
                                  .workspace_bytes = e->workspace_bytes,
                                  .internal_bytes = e->constant_bytes};
  give(out, out->struct_size, &own, sizeof own);
  return NULL;
}

static const bp_binding* binding(const bp_binding* first, size_t stride, size_t i) {
  return bp_at(first, stride, i);
}
/* Null where nothing is bound, or too little. */
static char* memory(const bp_executable* e, const bp_execute_args* args, uint32_t value) {
  const uint64_t at = e->places[value].at, bytes = e->bytes[value];
  switch (e->places[value].kind) {
    case INPUT:
      return address(&binding(args->inputs, args->binding_stride, at)->range, bytes);
    case OUTPUT:
      return address(&binding(args->outputs, args->binding_stride, at)->range, bytes);
    case WORKSPACE: {
      char* start = address(&args->workspace, e->workspace_bytes);
      return start != NULL ? start + at : NULL;
    }
    case CONSTANT:
      return e->constants + at;
    default:
      return NULL;
  }
}

static void run(operation op, float* to, const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float x = a[i], y = b[i];
    to[i] = op == ADD ? x + y : op == MUL ? x * y : op == NEG ? -x : x < 0 ? 0 : x;
  }
}

static bp_error* execute(bp_executable* e, const bp_execute_args* args) {
  bp_error* error = check_size(args->struct_size, sizeof *args);
  if (error != NULL) return error;
  if (args->binding_stride < sizeof(bp_binding) && e->input_count + e->output_count != 0)
    return fail(BP_INVALID_ARGUMENT, "bindings of an impossible size");
  for (size_t s = 0; s < e->step_count; ++s) {
    const step* one = &e->steps[s];
    if (one->count == 0) continue;
    const float* a = (const float*)memory(e, args, one->operands[0]);
    const float* b = (const float*)memory(e, args, one->operands[1]);
    float* to = (float*)memory(e, args, one->result);
    if (!a || !b || !to) return fail(BP_INVALID_ARGUMENT, "memory is missing or too small");
    run(one->op, to, a, b, one->count);
  }
  /* A value may be several outputs. */
  for (size_t i = 0; i < e->output_count; ++i) {
    const uint32_t value = e->outputs[i];
    const uint64_t bytes = e->bytes[value];
    if ((e->places[value].kind == OUTPUT && e->places[value].at == i) || bytes == 0) continue;
    const char* from = memory(e, args, value);
    char* to = address(&binding(args->outputs, args->binding_stride, i)->range, bytes);
    if (!from || !to) return fail(BP_INVALID_ARGUMENT, "memory is missing or too small");
    memcpy(to, from, bytes);
  }
  return NULL;
}

/* ---- Entry --------------------------------------------------------------------------------- */

static void shutdown_plugin(bp_plugin* plugin) { (void)plugin; }

static const bp_plugin_api api = {.struct_size = sizeof api,
                                  .version = BP_ABI_VERSION,
                                  .device_count = device_count,
                                  .device_describe = device_describe,
                                  .device_open = device_open,
                                  .device_close = device_close,
                                  .buffer_create = buffer_create,
                                  .buffer_release = buffer_release,
                                  .copy = copy,
                                  .claims = claims,
                                  .compile = compile,
                                  .executable_describe = executable_describe,
                                  .executable_release = executable_release,
                                  .execute = execute,
                                  .shutdown = shutdown_plugin};

void backplane_plugin_negotiate(bp_negotiation* n) {
  n->plugin_min = OLDEST;
  n->plugin_max = BP_ABI_VERSION;
  if (n->magic != BP_NEGOTIATE_MAGIC) {
    n->result = BP_NEGOTIATE_FAILED;
    strcpy(n->message, "this is no negotiation");
  } else if (n->host_max < OLDEST || n->host_min > BP_ABI_VERSION) {
    n->result = BP_NEGOTIATE_VERSION;
    strcpy(n->message, "plain speaks versions 0.2 and 0.3 of the ABI");
  } else {
    the_plugin.host = n->host;
    n->chosen = n->host_max < BP_ABI_VERSION ? n->host_max : BP_ABI_VERSION;
    n->api = &api;
    n->plugin = &the_plugin;
    n->result = BP_NEGOTIATE_OK;
  }
}
