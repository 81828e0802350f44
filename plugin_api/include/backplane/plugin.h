/* backplane/plugin.h - what a vendor implements, in call order:
 * entry, plugin, device, buffer, stream and event, claims, compile, execute, serialize, profile.
 *
 * The smallest plugin sets the thirteen (required) entries of bp_plugin_api and exports one
 * symbol. Everything else may be NULL for ever.
 */
#ifndef BACKPLANE_PLUGIN_H_
#define BACKPLANE_PLUGIN_H_

#include "base.h"
#include "graph.h"
#include "host.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Device ------------------------------------------------------------------------------ */

/* Unknown: as BP_DEVICE_ACCELERATOR. */
enum { BP_DEVICE_CPU = 1, BP_DEVICE_GPU = 2, BP_DEVICE_ACCELERATOR = 3 };

/* bp_device_info.flags */
/* kernels read and write host memory in place: bindings may carry host pointers, aligned to
 * offset_alignment_bytes or, where a caller's tensor is not, to its element size */
#define BP_DEVICE_BINDS_HOST_MEMORY (UINT64_C(1) << 0)

/* Peak rate for one dtype. (element) */
typedef struct bp_device_rate {
  bp_dtype dtype;
  uint32_t reserved;
  double flop_per_s; /* peak, all units together */
} bp_device_rate;

/* Strings and arrays are kept by the plugin. Zero: unknown, the host measures or guesses.
 * (grows) Also the "device description" that compile takes when no device is present. */
typedef struct bp_device_info {
  size_t struct_size;
  uint32_t kind;
  uint32_t reserved;
  uint64_t flags;
  bp_string name;         /* "Acme NPU-1" */
  bp_string architecture; /* what code is generated for: "sm_90", "npu1" */
  bp_string driver;       /* driver or runtime version */
  bp_string unique_id;    /* UUID or PCI address; empty where there is none */
  uint64_t memory_bytes;
  uint64_t buffer_limit_bytes;     /* largest single buffer */
  uint32_t buffer_alignment_bytes; /* of addresses the plugin allocates */
  uint32_t offset_alignment_bytes; /* of bp_range.offset_bytes; 0: as buffer_alignment */
  double memory_bytes_per_s;
  double to_device_bytes_per_s, from_device_bytes_per_s;
  double copy_latency_ns, launch_latency_ns;
  const bp_device_rate* rates; /* (nullable) when rate_count is 0 */
  size_t rate_count, rate_stride;
  /* Since 0.3. PyTorch's device that is this one, as PyTorch writes it: "cuda:0". Together with
   * memory_import; empty: PyTorch knows no such device. */
  bp_string torch_device;
} bp_device_info;

/* Unknown: as BP_HEALTH_DEGRADED. */
enum { BP_HEALTH_OK = 1, BP_HEALTH_DEGRADED = 2, BP_HEALTH_LOST = 3 };

/* Counters since open; the host keeps its own of everything it asked for, these add what it
 * cannot see. (grows) */
typedef struct bp_device_counters {
  size_t struct_size;
  uint32_t health; /* BP_HEALTH_* */
  uint32_t reserved;
  uint64_t live_bytes, peak_bytes;
  uint64_t internal_bytes; /* part of live_bytes the host did not ask for: workspaces, code */
  uint64_t hidden_copy_bytes, hidden_copy_count; /* host<->device, not asked for by the host */
} bp_device_counters;

/* ---- Stream, event: what every asynchronous call carries --------------------------------- */

/* Work starts after stream's earlier work and all waits; signal completes after it. A NULL
 * stream is the device's own default order. waits may come from other streams of this device.
 *
 * Failures. An entry that returns an error has queued nothing and leaves signal as it was. Work that
 * fails later fails its signal; without one, its stream keeps the failure for its next signal, which
 * fails with it, and is clean again. Later work of the stream goes on. Work that waits for an event
 * which has failed does not run, and fails with the same error. (frozen) */
typedef struct bp_order {
  bp_stream* stream;         /* (nullable) */
  bp_event* const* waits;    /* (nullable) when wait_count is 0 */
  size_t wait_count;
  bp_event* signal;          /* (nullable); an event can be signalled again, see event_create */
} bp_order;

/* Both ends on this device, or one end in host memory. Host memory stays untouched until signal
 * completes (until the call returns, without signal). Zero bytes with both ranges empty: nothing but
 * the order, by which the host signals what was queued before. (grows) */
typedef struct bp_copy_args {
  size_t struct_size;
  bp_range source, target; /* of equal size_bytes */
  bp_order order;
} bp_copy_args;

/* A tensor outside any graph, with sizes known. (grows) */
typedef struct bp_tensor_desc {
  size_t struct_size;
  bp_dtype dtype;
  uint32_t rank;
  const int64_t* dims;
  const int64_t* strides; /* (nullable): dense row-major; read for BP_LAYOUT_STRIDED only */
  bp_layout layout;
} bp_tensor_desc;

/* ---- Compile ----------------------------------------------------------------------------- */

/* The host's wish for one input or output. (element) */
typedef struct bp_io_request {
  bp_layout layout; /* STRIDED: as the value says; ANY lets the plugin choose */
} bp_io_request;

/* The plugin's answer for one input or output. (element) */
typedef struct bp_io_contract {
  bp_layout layout; /* STRIDED or OPAQUE */
} bp_io_contract;

enum { BP_ROLE_SINGLE = 0, BP_ROLE_FORWARD = 1, BP_ROLE_BACKWARD = 2 };

/* (grows) */
typedef struct bp_compile_args {
  size_t struct_size;
  bp_device* device;
  const bp_device_info* info;
  const bp_graph* graph;
  const bp_io_request* inputs;
  const bp_io_request* outputs;
  size_t io_stride; /* counts are graph->input_count and output_count */
  const bp_cancel* cancel; /* (nullable) ask is_cancelled now and then; if so return BP_CANCELLED */
  uint32_t role; /* BP_ROLE_* */
  uint32_t reserved;
} bp_compile_args;

/* bp_executable_info.flags */
#define BP_EXECUTABLE_ONE_CALL (UINT64_C(1) << 0) /* execute is [one at a time] on it */
#define BP_EXECUTABLE_SYNCHRONOUS (UINT64_C(1) << 1) /* execute returns when the work is done */
/* execute takes the memory of outputs and intermediates, and gives that of inputs back, through
 * bp_lending where the host has one. Only together with SYNCHRONOUS. */
#define BP_EXECUTABLE_LENDING (UINT64_C(1) << 2)

/* Arrays and strings are kept by the executable. (grows) */
typedef struct bp_executable_info {
  size_t struct_size;
  uint64_t flags;
  const bp_io_contract* inputs;
  const bp_io_contract* outputs;
  size_t io_stride;
  uint64_t workspace_bytes; /* at all sizes; else 0 and executable_workspace tells */
  uint64_t internal_bytes; /* device memory it holds by itself: code, own constants */
  double time_ns; /* better estimate than the claim's, 0: none */
  bp_string requirement; /* see blob_check; empty: cannot be serialized */
} bp_executable_info;

/* ---- Execute ----------------------------------------------------------------------------- */

/* (element) An output's range overlaps no other binding's. */
typedef struct bp_binding {
  bp_range range;     /* buffer (nullable) for scalars and empty tensors */
  uint64_t scalar[2]; /* HOST_SCALAR: the element, little-endian, low bytes first */
} bp_binding;

/* What lent memory is for. Unknown: as INTERMEDIATE. */
typedef uint32_t bp_workspace_kind;
enum {
  BP_WORKSPACE_INTERMEDIATE = 1, /* a value of the graph */
  BP_WORKSPACE_SCRATCH = 2       /* what a kernel needs while it runs */
};

/* Memory that comes late and goes early. The entries are called in the thread of execute and before
 * it returns. (grows) */
typedef struct bp_lending {
  size_t struct_size;
  void* user;
  /* Memory of an output, before its first write; asked for once. Outputs whose range in the bindings
   * has a size and neither buffer nor address are lent; all others are bound as ever. */
  bp_error* (*lend_output)(void* user, uint32_t output, bp_range* out_range);
  /* An input is not read any more: the host may reuse its memory at once. At most once each. */
  void (*input_done)(void* user, uint32_t input);
  /* More memory beside args.workspace, aligned as that is. Everything lent is given back, with its
   * kind, before execute returns. */
  bp_error* (*lend_workspace)(void* user, uint64_t bytes, bp_workspace_kind kind,
                              bp_range* out_range);
  void (*workspace_done)(void* user, const bp_range* range, bp_workspace_kind kind);
} bp_lending;

/* Everything but the content of buffers is read before execute returns. (grows) */
typedef struct bp_execute_args {
  size_t struct_size;
  const bp_binding* inputs;
  const bp_binding* outputs;
  size_t binding_stride;
  bp_range workspace; /* size 0 when the executable wants none; exclusive to this call */
  const int64_t* dims; /* a value per dim class of the compiled graph, (nullable) when none */
  bp_order order;
  uint64_t call_id; /* for profile ranges and messages */
  const bp_lending* lending; /* (nullable) set only for executables that say LENDING */
} bp_execute_args;

/* ---- Blobs ------------------------------------------------------------------------------- */

/* Unknown: as BP_BLOB_RECOMPILE. */
enum { BP_BLOB_COMPATIBLE = 1, BP_BLOB_RECOMPILE = 2 };

/* ---- The table --------------------------------------------------------------------------- */

/* bp_plugin_api.flags */
/* the host holds a lock per device over every call */
#define BP_PLUGIN_ONE_CALL_PER_DEVICE (UINT64_C(1) << 0)

/* (grows) */
typedef struct bp_plugin_api {
  size_t struct_size;
  uint32_t version; /* highest minor the plugin was written to */
  uint32_t reserved;
  uint64_t flags;

  /* Device. */
  uint32_t (*device_count)(bp_plugin* plugin);                                  /* (required) */
  bp_error* (*device_describe)(bp_plugin* plugin, uint32_t index,
                               bp_device_info* out_info);                       /* (required) */
  bp_error* (*device_open)(bp_plugin* plugin, uint32_t index,
                           bp_device** out_device);                             /* (required) */
  void (*device_close)(bp_device* device); /* after all its objects */          /* (required) */

  /* Buffer. */
  bp_error* (*buffer_create)(bp_device* device, uint64_t bytes,
                             bp_buffer** out_buffer);                           /* (required) */
  void (*buffer_release)(bp_buffer* buffer); /* after the work that uses it */  /* (required) */
  bp_error* (*copy)(bp_device* device, const bp_copy_args* args);               /* (required) */

  /* Claims. The sink is valid during the call. Nodes neither claimed nor refused are refused
   * without a reason. */
  bp_error* (*claims)(bp_plugin* plugin, const bp_device_info* info, const bp_graph* graph,
                      bp_claim_sink* sink);                                     /* (required) */

  /* Compile. Called on host threads, several at a time. */
  bp_error* (*compile)(bp_plugin* plugin, const bp_compile_args* args,
                       bp_executable** out_executable);                         /* (required) */
  bp_error* (*executable_describe)(bp_executable* executable,
                                   bp_executable_info* out_info);               /* (required) */
  /* Legal while its work is queued: the plugin keeps what that needs. */
  void (*executable_release)(bp_executable* executable);                        /* (required) */
  bp_error* (*execute)(bp_executable* executable, const bp_execute_args* args); /* (required) */

  /* Last call: every object is gone. At the end of the process, in its main thread; not made where
   * objects are still alive then. The library stays mapped. */
  void (*shutdown)(bp_plugin* plugin);                                          /* (required) */

  /* (optional) Default: all counters zero, health OK until a call returns DEVICE_LOST. */
  bp_error* (*device_counters)(bp_device* device, bp_device_counters* out_counters);
  /* Streams and events: one group of six (optional) entries. Default: no streams; order.stream,
   * waits and signal are NULL in every call, and every call completes before it returns. */
  bp_error* (*stream_create)(bp_device* device, bp_stream** out_stream); /* UNSUPPORTED: none */
  void (*stream_release)(bp_stream* stream); /* its work goes on */
  /* An event starts complete. Every signal makes it pending again; a wait takes the latest
   * signal at the time of the call. The host signals no event that is pending. */
  bp_error* (*event_create)(bp_device* device, bp_event** out_event);
  void (*event_release)(bp_event* event); /* legal while pending */
  /* out_done 1: complete or failed. A failure is returned as the error, at each query, with a
   * count of its own. The same holds for event_wait. */
  bp_error* (*event_query)(bp_event* event, int32_t* out_done);
  bp_error* (*event_wait)(bp_event* event, uint64_t timeout_ns); /* host waits; else TIMEOUT */
  /* Layouts: one group of two (optional) entries. Default: the plugin answers no OPAQUE layout.
   * Bytes of a tensor in an opaque layout; and conversion from or to dense row-major (or another
   * of its layouts). This is also how weights are prepacked: convert once per version, share the
   * result between all executables that ask for the same layout. With BP_DEVICE_BINDS_HOST_MEMORY the
   * source may lie in host memory. Where streams exist order.signal is set, else the conversion is
   * done on return. */
  bp_error* (*layout_bytes)(bp_plugin* plugin, const bp_device_info* info,
                            const bp_tensor_desc* desc, uint64_t* out_bytes);
  bp_error* (*layout_convert)(bp_device* device, const bp_tensor_desc* source_desc,
                              const bp_range* source, const bp_tensor_desc* target_desc,
                              const bp_range* target, const bp_order* order);

  /* (optional) Default: workspace_bytes of the executable at all sizes. Bytes of the workspace at
   * these values of the dim classes; the host takes the larger of the two. */
  bp_error* (*executable_workspace)(bp_executable* executable, const int64_t* dims,
                                    uint64_t* out_bytes);

  /* Blobs: one group of three (optional) entries. Default: executables are not cached.
   * blob_check looks at the requirement string alone and says what the blob is worth here. */
  bp_error* (*executable_save)(bp_executable* executable, bp_byte_sink* sink);
  bp_error* (*blob_check)(bp_plugin* plugin, const bp_device_info* info, bp_string requirement,
                          uint32_t* out_answer);
  bp_error* (*executable_load)(bp_device* device, const void* data, size_t size,
                               bp_executable** out_executable);

  /* Profile: one group of two (optional) entries. Default: the host times calls from outside.
   * Between begin and end the plugin collects; end delivers everything to the sink. */
  bp_error* (*profile_begin)(bp_device* device);
  bp_error* (*profile_end)(bp_device* device, bp_profile_sink* sink);

  /* Since 0.3. Memory and streams of PyTorch's own device (bp_device_info.torch_device): one group of
   * two (optional) entries, beside streams and events. Default: PyTorch's tensors there are not taken.
   * A buffer over all of the device's memory: offsets in it are addresses, and aligned to elements
   * alone, whatever offset_alignment_bytes says. Releasing it frees nothing. */
  bp_error* (*memory_import)(bp_device* device, bp_buffer** out_buffer);
  /* A stream over one of PyTorch's (a cudaStream_t), which stays PyTorch's own. `handle` 0 may be one:
   * CUDA's default stream. */
  bp_error* (*stream_import)(bp_device* device, uint64_t handle, bp_stream** out_stream);
} bp_plugin_api;

/* ---- Entry ------------------------------------------------------------------------------- */

#define BP_NEGOTIATE_MAGIC 0x4e504b42u /* "BKPN" */

/* Unknown: as BP_NEGOTIATE_FAILED. */
enum {
  BP_NEGOTIATE_FAILED = 0, /* also what an untouched answer says */
  BP_NEGOTIATE_OK = 1,
  BP_NEGOTIATE_VERSION = 2 /* ranges do not meet */
};

/* The one struct that never changes in any major. The host calls once per major it speaks,
 * newest first, until OK; a refusal has no side effects. */
typedef struct bp_negotiation {
  uint32_t magic;           /* in */
  uint32_t host_min, host_max; /* in: inclusive range within one major */
  uint32_t result;          /* out: BP_NEGOTIATE_* */
  uint32_t plugin_min, plugin_max; /* out, always: the plugin's range in the nearest major */
  uint32_t chosen;          /* out: min(host_max, plugin_max) */
  uint32_t reserved;
  const bp_host_api* host;  /* in: table of that major, lives until the process ends */
  const bp_plugin_api* api; /* out: table of the chosen major, static */
  bp_plugin* plugin;        /* out: passed back to plugin-level calls */
  char message[256];        /* out: why not, UTF-8, terminated */
} bp_negotiation;

#if defined(_WIN32)
#define BP_EXPORT __declspec(dllexport)
#else
#define BP_EXPORT __attribute__((visibility("default")))
#endif

/* The one exported symbol. Never throws; fills the answer. Called once per major, one thread. */
#define BP_ENTRY_NAME "backplane_plugin_negotiate"
BP_EXPORT void backplane_plugin_negotiate(bp_negotiation* negotiation);

/* ---- ELF note: read without loading; section ".note.backplane", type 1, owner "backplane" -- */

enum { BP_SANITIZER_NONE = 0, BP_SANITIZER_ADDRESS = 1, BP_SANITIZER_THREAD = 2 };

/* (frozen) */
typedef struct bp_note {
  uint32_t name_size, description_size, type; /* ELF's own header: 12, sizeof - 24, 1 */
  char owner[12];                             /* "backplane" */
  uint32_t plugin_min, plugin_max;
  uint32_t sanitizer;
  char plugin_name[64];
  char plugin_vendor[64];
  char plugin_version[32];
} bp_note;

#define BP_NOTE(min_version, max_version, name, vendor, version, sanitizer_kind)              \
  __attribute__((section(".note.backplane"), used, aligned(4))) static const bp_note          \
      bp_plugin_note = {12, sizeof(bp_note) - 24, 1, "backplane", min_version, max_version,   \
                        sanitizer_kind, name, vendor, version}

#ifdef __cplusplus
}
#endif
#endif /* BACKPLANE_PLUGIN_H_ */
