/* backplane/host.h - what the host does for a plugin: one table, handed over at negotiation. */
#ifndef BACKPLANE_HOST_H_
#define BACKPLANE_HOST_H_

#include "base.h"
#include "graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Unknown level: as BP_LOG_INFO. */
enum { BP_LOG_ERROR = 1, BP_LOG_WARNING = 2, BP_LOG_INFO = 3, BP_LOG_DEBUG = 4 };

/* What an error is made from; all borrowed. (grows) */
typedef struct bp_error_args {
  size_t struct_size;
  bp_code code;
  uint32_t line;         /* of the call site in the plugin, 0: unknown */
  bp_string message;     /* one sentence, no trailing newline */
  bp_string file;
  bp_string function;
  const uint32_t* node_ids; /* (nullable) the nodes it is about */
  size_t node_count;
} bp_error_args;

/* A finished stretch of device time. (grows) */
typedef struct bp_profile_range {
  size_t struct_size;
  bp_string name; /* kernel or copy */
  uint64_t begin_ns, end_ns; /* on the host's clock (clock_ns), converted by the plugin */
  uint64_t uncertainty_ns; /* of that conversion */
  uint64_t call_id; /* from bp_execute_args */
  const uint32_t* node_ids; /* (nullable) */
  size_t node_count;
  uint32_t device; /* index */
  uint32_t queue;  /* any small number: one row in the trace */
} bp_profile_range;

/* Every entry is set by the host as far as struct_size reaches. (grows) */
typedef struct bp_host_api {
  size_t struct_size;
  uint32_t version; /* highest the host speaks in this major */
  uint32_t reserved;
  bp_host* host; /* first argument of every call below */

  /* Errors. error_create cannot fail: out of memory gives a static OUT_OF_MEMORY error. The
   * result is owned: return it, or store it in an event, or release it. */
  bp_error* (*error_create)(bp_host* host, const bp_error_args* args);
  void (*error_retain)(bp_host* host, bp_error* error);
  void (*error_release)(bp_host* host, bp_error* error); /* NULL is fine */
  bp_code (*error_code)(bp_host* host, const bp_error* error); /* NULL: BP_OK */
  bp_string (*error_message)(bp_host* host, const bp_error* error); /* kept by the error */

  void (*log)(bp_host* host, uint32_t level, bp_string message);

  /* Runs body over [0, count) in chunks of at least grain on the host's pool; returns when all
   * are done; body's first error is returned. Nested calls run in the calling thread. */
  uint32_t (*thread_count)(bp_host* host);
  bp_error* (*parallel_for)(bp_host* host, size_t count, size_t grain, void* user,
                            bp_error* (*body)(void* user, size_t begin, size_t end));

  /* Tracing: the host's monotonic clock; spans nest per thread; ranges may come late. */
  uint64_t (*clock_ns)(bp_host* host);
  uint64_t (*span_begin)(bp_host* host, bp_string name); /* 0: tracing is off */
  void (*span_end)(bp_host* host, uint64_t span);
  void (*profile_add)(bp_profile_sink* sink, const bp_profile_range* range);

  /* Persistent cache, keyed by plugin, plugin version and key. get writes to the sink and
   * returns 1, or returns 0. Content is untrusted input. */
  int32_t (*cache_get)(bp_host* host, bp_string key, bp_byte_sink* sink);
  void (*cache_put)(bp_host* host, bp_string key, const void* data, size_t size);
  /* A sink made for cache_get by the plugin: grows a host buffer, released after reading. */
  bp_byte_sink* (*bytes_create)(bp_host* host); /* owned: bytes_release */
  bp_string (*bytes_view)(const bp_byte_sink* sink); /* kept until the next write */
  void (*bytes_release)(bp_byte_sink* sink);

  int32_t (*is_cancelled)(const bp_cancel* cancel); /* NULL: 0. Cheap; poll it */

  /* Answers. Everything passed is copied before the call returns. */
  bp_error* (*claim_add)(bp_claim_sink* sink, const bp_claim* claim);
  bp_error* (*refuse_add)(bp_claim_sink* sink, uint32_t node_id, bp_refusal reason,
                          bp_string text);
  bp_error* (*bytes_write)(bp_byte_sink* sink, const void* data, size_t size);
} bp_host_api;

#ifdef __cplusplus
}
#endif
#endif /* BACKPLANE_HOST_H_ */
