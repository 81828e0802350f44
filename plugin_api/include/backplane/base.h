/* backplane/base.h - rules and small types. Read this first, then graph.h, host.h, plugin.h.
 *
 * VERSIONS   A version is BP_VERSION(major, minor). From 1.0 on, within one major, tables and
 *            structs only grow at the end, enums only gain values, optional stays optional.
 *            Before 1.0 a minor may break, each break dated in VERSIONING.md. struct_size says
 *            which fields exist; the negotiated version says which rules hold.
 *
 * STRUCTS    Three classes, named at each struct:
 *              grows   first field struct_size. Reader: take min(struct_size, own sizeof) bytes,
 *                      treat the rest as zero. Zero means "default" for every field ever added.
 *                      As an output the caller sets struct_size to its capacity; the callee
 *                      writes min(capacity, own sizeof) bytes and stores that number.
 *                      0, less than the size of version 0.2, or more than BP_STRUCT_SIZE_LIMIT
 *                      is an error (BP_INVALID_ARGUMENT); being larger than expected is not.
 *              element lives in an array whose owner carries a stride. Step by the stride, never
 *                      by sizeof. Grows at the end as above; the stride is its struct_size.
 *              Peers guarantee at least the size of 0.2: its fields are read in place. A later
 *              field is read only behind BP_HAS(struct_size or stride, type, field), because in
 *              place the bytes after a shorter element are the next element, not zeros.
 *              frozen  never changes in this major. Only frozen structs are embedded in others or
 *                      passed alone without a struct_size.
 *
 * ENUMS      Stored as fixed-width integers; 0 means unspecified; values are never reused. A
 *            reader that meets an unknown value does what the comment at the enum says. Flag
 *            words: unknown bits are ignored, except the "must understand" upper half
 *            (bits 32..63): an unknown bit there is BP_UNSUPPORTED.
 *
 * OWNERSHIP  borrowed  (default) valid until the call returns.
 *            kept      valid until the object that handed it out is released.
 *            owned     the receiver releases it, once, with the release call named there.
 *            Release accepts NULL, cannot fail, and is legal after a lost device.
 *
 * ERRORS     bp_error* NULL is success. A returned error is owned by the host. Errors are made by
 *            the host (bp_host_api.error_create), immutable and counted. After an error, outputs
 *            are not read. No exception, longjmp, abort or exit crosses this boundary.
 *
 * NULL       Pointers are non-null unless marked (nullable). A string may be {NULL, 0}.
 *
 * THREADS    Any host thread may make any call, several at a time, on different objects. On one
 *            object: release never overlaps another call; calls marked [one at a time] never
 *            overlap each other on it; the rest may overlap. A plugin that needs more sets
 *            BP_PLUGIN_ONE_CALL_PER_DEVICE or BP_EXECUTABLE_ONE_CALL. Callbacks into the host
 *            come from any thread; inside an event callback only error_*, log and clock_ns are
 *            legal. After fork() the child makes no calls.
 *
 * CALLS      (required) entries are never NULL. (optional) entries state their default, which
 *            the host carries out. Entries of one "group" are all NULL or all set. Function
 *            pointers handed to the host lie in the plugin library's own executable segment.
 *
 * STATE      A plugin leaves FP control state, signal handlers, locale, umask, the working
 *            directory and the environment as it found them.
 */
#ifndef BACKPLANE_BASE_H_
#define BACKPLANE_BASE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_VERSION(major, minor) (((uint32_t)(major) << 16) | (uint32_t)(minor))
#define BP_VERSION_MAJOR(version) ((uint32_t)(version) >> 16)
#define BP_VERSION_MINOR(version) ((uint32_t)(version) & 0xffffu)
#define BP_ABI_VERSION BP_VERSION(0, 3)
#define BP_STRUCT_SIZE_LIMIT 65536u
#define BP_HAS(size, type, field) ((size) >= offsetof(type, field) + sizeof(((type*)0)->field))
#define BP_NONE 0xffffffffu /* "no index" in every uint32_t index field */

/* UTF-8, not terminated. (frozen) */
typedef struct bp_string {
  const char* data; /* (nullable) when size is 0 */
  size_t size;
} bp_string;

/* Bit for bit DLPack's DLDataType: code, bits of one lane, lanes. (frozen)
 * Elements of fewer than 8 bits are packed, first element in the low bits; the last dimension
 * of such a tensor is dense and its rows start on byte boundaries. */
typedef struct bp_dtype {
  uint8_t code; /* BP_DTYPE_* = DLDataTypeCode; unknown: refuse the node that carries it */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} bp_dtype;

enum {
  BP_DTYPE_INT = 0,
  BP_DTYPE_UINT = 1,
  BP_DTYPE_FLOAT = 2,
  BP_DTYPE_OPAQUE = 3,
  BP_DTYPE_BFLOAT = 4,
  BP_DTYPE_COMPLEX = 5,
  BP_DTYPE_BOOL = 6 /* a byte: 0 is false and any other true when read; 0 or 1 is written */
};

/* Error codes. Unknown: treat as BP_INTERNAL. */
typedef uint32_t bp_code;
enum {
  BP_OK = 0,
  /* The caller broke a rule of this header. Of execute and of its work: the data were refused, an
   * index out of range; the host runs that call without the plugin, so that PyTorch says it. */
  BP_INVALID_ARGUMENT = 1,
  /* Legal, but this plugin cannot. Of compile and load the host falls back; of a call it is an
   * error: sizes that cannot be run are refused in claims. */
  BP_UNSUPPORTED = 2,
  BP_OUT_OF_MEMORY = 3,    /* resource: host or device memory; the host may free and retry */
  BP_RESOURCE_BUSY = 4,    /* resource: queues, handles, licences; retry later */
  BP_DEVICE_LOST = 5,      /* every later call on the device fails so, until the process ends */
  BP_CANCELLED = 6,
  BP_TIMEOUT = 7,
  BP_DATA_CORRUPT = 8, /* a blob or a layout that does not parse */
  BP_INTERNAL = 9      /* a bug in the plugin; what the exception shield returns */
};

/* A stretch of memory that a call reads or writes: of a buffer, so that the host can place many
 * values in one buffer, or of host memory when buffer is NULL. Copies take either; execute takes
 * host memory only on a device with BP_DEVICE_BINDS_HOST_MEMORY. All zero: nothing bound.
 * (frozen) */
typedef struct bp_range {
  struct bp_buffer* buffer; /* (nullable) */
  void* host;               /* (nullable) */
  uint64_t offset_bytes; /* multiple of offset_alignment_bytes */
  uint64_t size_bytes;
} bp_range;

/* Objects of the host. */
typedef struct bp_error bp_error;
typedef struct bp_host bp_host;           /* the services themselves, first argument of each */
typedef struct bp_cancel bp_cancel;       /* asks whether this call should stop */
typedef struct bp_claim_sink bp_claim_sink;
typedef struct bp_byte_sink bp_byte_sink;
typedef struct bp_profile_sink bp_profile_sink;

/* Objects of the plugin; it defines these structs as it likes. */
typedef struct bp_plugin bp_plugin;
typedef struct bp_device bp_device;
typedef struct bp_buffer bp_buffer;
typedef struct bp_stream bp_stream;
typedef struct bp_event bp_event;
typedef struct bp_executable bp_executable;

#ifdef __cplusplus
}
#endif
#endif /* BACKPLANE_BASE_H_ */
