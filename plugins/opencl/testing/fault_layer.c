/* An OpenCL layer for tests (OPENCL_LAYERS=<its path>): calls fail as BACKPLANE_FAULTY_CL says, the
 * rest goes to the real driver. The variable is read at each call, so that a running program can
 * change it; a new text counts anew.
 *
 *   <call>:<code>:<skip>:<count>[;...]   of that call, <count> fail with <code> after <skip> good
 * ones; count -1: all that follow lost:<code>:<skip>                   after <skip> launches every
 * call on a queue fails command:<code>:<skip>                a launch succeeds, and events end with
 * <code> from then on source:0:<skip>:<count>              the program names a function that does
 * not exist
 */
#include <CL/cl_layer.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct _cl_icd_dispatch* target;
static struct _cl_icd_dispatch layer;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

enum { kRules = 8 };
static char plan[512];
static int seen[kRules];
static int is_lost;
static cl_int lost_code;
static cl_int command_code;

/* The code that this call of `call` fails with, or 0. */
static cl_int fault(const char* call) {
  const char* wanted = getenv("BACKPLANE_FAULTY_CL");
  cl_int result = CL_SUCCESS;
  if (wanted == NULL) wanted = "";
  pthread_mutex_lock(&mutex);
  if (strncmp(plan, wanted, sizeof plan - 1) != 0) {
    snprintf(plan, sizeof plan, "%s", wanted);
    memset(seen, 0, sizeof seen);
    is_lost = 0;
    command_code = 0;
  }
  const char* rule = plan;
  for (int i = 0; i < kRules && rule != NULL && *rule != 0; ++i) {
    char name[64];
    int code = 0, skip = 0, count = 1;
    if (sscanf(rule, "%63[^:]:%d:%d:%d", name, &code, &skip, &count) >= 2 &&
        strcmp(name, call) == 0) {
      const int at = seen[i]++ - skip;
      if (at >= 0 && (count < 0 || at < count)) result = code == 0 ? 1 : code;
    }
    rule = strchr(rule, ';');
    if (rule != NULL) ++rule;
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

/* Every call that reaches a device goes through this. */
static cl_int queue_fault(const char* call) {
  const cl_int own = fault(call);
  if (strcmp(call, "clEnqueueNDRangeKernel") == 0) {
    const cl_int lost = fault("lost");
    if (lost != CL_SUCCESS) {
      is_lost = 1;
      lost_code = lost;
    }
  }
  return is_lost ? lost_code : own;
}

static cl_int CL_API_CALL get_device_ids(cl_platform_id platform, cl_device_type type, cl_uint room,
                                         cl_device_id* out, cl_uint* out_count) {
  const cl_int code = fault("clGetDeviceIDs");
  return code != CL_SUCCESS ? code : target->clGetDeviceIDs(platform, type, room, out, out_count);
}
static cl_context CL_API_CALL create_context(const cl_context_properties* properties, cl_uint count,
                                             const cl_device_id* devices,
                                             void(CL_CALLBACK* notify)(const char*, const void*,
                                                                       size_t, void*),
                                             void* user, cl_int* out_code) {
  const cl_int code = fault("clCreateContext");
  if (code == CL_SUCCESS)
    return target->clCreateContext(properties, count, devices, notify, user, out_code);
  if (out_code != NULL) *out_code = code;
  return NULL;
}
static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t size,
                                        void* host, cl_int* out_code) {
  const cl_int code = fault("clCreateBuffer");
  if (code == CL_SUCCESS) return target->clCreateBuffer(context, flags, size, host, out_code);
  if (out_code != NULL) *out_code = code;
  return NULL;
}
static cl_program CL_API_CALL create_program(cl_context context, cl_uint count, const char** texts,
                                             const size_t* sizes, cl_int* out_code) {
  static const char kWord[] = "(int)BP_ID(0)", kWrong[] = "no_such_id(0)";
  char* whole = NULL;
  size_t size = 0;
  cl_program program;
  if (count != 1 || sizes == NULL || fault("source") == CL_SUCCESS)
    return target->clCreateProgramWithSource(context, count, texts, sizes, out_code);
  size = sizes[0];
  whole = malloc(size + 1);
  memcpy(whole, texts[0], size);
  whole[size] = 0;
  char* at = strstr(whole, kWord);
  if (at != NULL) memcpy(at, kWrong, sizeof kWord - 1);
  program = target->clCreateProgramWithSource(context, 1, (const char**)&whole, &size, out_code);
  free(whole);
  return program;
}
static cl_int CL_API_CALL build_program(cl_program program, cl_uint count,
                                        const cl_device_id* devices, const char* options,
                                        void(CL_CALLBACK* notify)(cl_program, void*), void* user) {
  const cl_int code = fault("clBuildProgram");
  return code != CL_SUCCESS
             ? code
             : target->clBuildProgram(program, count, devices, options, notify, user);
}
static cl_int CL_API_CALL launch(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                 const size_t* offset, const size_t* items, const size_t* group,
                                 cl_uint wait_count, const cl_event* waits, cl_event* out_event) {
  const cl_int code = queue_fault("clEnqueueNDRangeKernel");
  if (code != CL_SUCCESS) return code;
  const cl_int later = fault("command");
  if (later != CL_SUCCESS) command_code = later;
  return target->clEnqueueNDRangeKernel(queue, kernel, dims, offset, items, group, wait_count,
                                        waits, out_event);
}
static cl_int CL_API_CALL write_buffer(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                       size_t offset, size_t size, const void* data,
                                       cl_uint wait_count, const cl_event* waits,
                                       cl_event* out_event) {
  const cl_int code = queue_fault("clEnqueueWriteBuffer");
  if (code != CL_SUCCESS) return code;
  return target->clEnqueueWriteBuffer(queue, memory, blocking, offset, size, data, wait_count,
                                      waits, out_event);
}
static cl_int CL_API_CALL read_buffer(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                      size_t offset, size_t size, void* data, cl_uint wait_count,
                                      const cl_event* waits, cl_event* out_event) {
  const cl_int code = queue_fault("clEnqueueReadBuffer");
  if (code != CL_SUCCESS) return code;
  return target->clEnqueueReadBuffer(queue, memory, blocking, offset, size, data, wait_count, waits,
                                     out_event);
}
static cl_int CL_API_CALL marker(cl_command_queue queue, cl_uint wait_count, const cl_event* waits,
                                 cl_event* out_event) {
  const cl_int code = queue_fault("clEnqueueMarkerWithWaitList");
  return code != CL_SUCCESS
             ? code
             : target->clEnqueueMarkerWithWaitList(queue, wait_count, waits, out_event);
}
static cl_int CL_API_CALL flush(cl_command_queue queue) {
  const cl_int code = queue_fault("clFlush");
  return code != CL_SUCCESS ? code : target->clFlush(queue);
}
static cl_int CL_API_CALL finish(cl_command_queue queue) {
  const cl_int code = queue_fault("clFinish");
  const cl_int done = target->clFinish(queue); /* a device that is gone runs nothing any more */
  return code != CL_SUCCESS ? code : done;
}
static cl_int CL_API_CALL wait_for(cl_uint count, const cl_event* events) {
  const cl_int code = queue_fault("clWaitForEvents");
  if (code != CL_SUCCESS) return code;
  const cl_int done = target->clWaitForEvents(count, events);
  return command_code != 0 ? CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST : done;
}
static cl_int CL_API_CALL event_info(cl_event event, cl_event_info what, size_t size, void* value,
                                     size_t* out_size) {
  const cl_int done = target->clGetEventInfo(event, what, size, value, out_size);
  if (what == CL_EVENT_COMMAND_EXECUTION_STATUS && command_code != 0 && value != NULL)
    *(cl_int*)value = command_code;
  return done;
}

__attribute__((visibility("default"))) CL_API_ENTRY cl_int CL_API_CALL
clGetLayerInfo(cl_layer_info what, size_t size, void* value, size_t* out_size) {
  const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
  if (what != CL_LAYER_API_VERSION || (value != NULL && size < sizeof version))
    return CL_INVALID_VALUE;
  if (value != NULL) memcpy(value, &version, sizeof version);
  if (out_size != NULL) *out_size = sizeof version;
  return CL_SUCCESS;
}

__attribute__((visibility("default"))) CL_API_ENTRY cl_int CL_API_CALL
clInitLayer(cl_uint count, const cl_icd_dispatch* below, cl_uint* out_count,
            const cl_icd_dispatch** out_layer) {
  const size_t known = sizeof layer / sizeof(void*);
  if (below == NULL || out_count == NULL || out_layer == NULL) return CL_INVALID_VALUE;
  target = below;
  memcpy(&layer, below, (count < known ? count : known) * sizeof(void*));
  layer.clGetDeviceIDs = get_device_ids;
  layer.clCreateContext = create_context;
  layer.clCreateBuffer = create_buffer;
  layer.clCreateProgramWithSource = create_program;
  layer.clBuildProgram = build_program;
  layer.clEnqueueNDRangeKernel = launch;
  layer.clEnqueueWriteBuffer = write_buffer;
  layer.clEnqueueReadBuffer = read_buffer;
  layer.clEnqueueMarkerWithWaitList = marker;
  layer.clFlush = flush;
  layer.clFinish = finish;
  layer.clWaitForEvents = wait_for;
  layer.clGetEventInfo = event_info;
  *out_count = (cl_uint)known;
  *out_layer = &layer;
  return CL_SUCCESS;
}
