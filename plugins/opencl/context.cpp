#include "context.h"

#include <backplane/kernelgen/kernel.hpp>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "signal_guard.h"

namespace backplane::opencl {
namespace {

constexpr std::string_view kBuildOptions = "-cl-std=CL1.2";
constexpr std::int64_t kLanes = 16;  // of vectors in generated texts

template <class T>
T device_fact(cl_device_id device, cl_device_info what, T fallback) {
  T value = fallback;
  return clGetDeviceInfo(device, what, sizeof value, &value, nullptr) == CL_SUCCESS ? value
                                                                                    : fallback;
}
std::string device_text(cl_device_id device, cl_device_info what) {
  std::size_t size = 0;
  if (clGetDeviceInfo(device, what, 0, nullptr, &size) != CL_SUCCESS || size == 0) return {};
  std::string text(size, 0);
  clGetDeviceInfo(device, what, size, text.data(), nullptr);
  while (!text.empty() && (text.back() == 0 || text.back() == ' ')) text.pop_back();
  return text;
}

DeviceFacts facts_of(cl_platform_id platform, cl_device_id device) {
  DeviceFacts f;
  f.platform = platform;
  f.device = device;
  f.name = device_text(device, CL_DEVICE_NAME);
  f.vendor = device_text(device, CL_DEVICE_VENDOR);
  f.version = device_text(device, CL_DEVICE_VERSION);
  f.driver = device_text(device, CL_DRIVER_VERSION);
  const std::string extensions = device_text(device, CL_DEVICE_EXTENSIONS);
  f.has_fp64 = extensions.find("cl_khr_fp64") != std::string::npos;
  f.has_fp16 = extensions.find("cl_khr_fp16") != std::string::npos;
  f.is_cpu = (device_fact<cl_device_type>(device, CL_DEVICE_TYPE, 0) & CL_DEVICE_TYPE_CPU) != 0;
  const char* schedule = std::getenv("BACKPLANE_OPENCL_SCHEDULE");
  f.gpu_schedule =
      schedule != nullptr && *schedule != 0 ? std::string_view(schedule) == "gpu" : !f.is_cpu;
  const char* zero_copy = std::getenv("BACKPLANE_OPENCL_ZERO_COPY");
  f.binds_host_memory =
      f.is_cpu && !(zero_copy != nullptr && std::string_view(zero_copy) == "0") &&
      device_fact<cl_bool>(device, CL_DEVICE_HOST_UNIFIED_MEMORY, CL_FALSE) == CL_TRUE;
  f.memory_bytes = device_fact<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE, 0);
  f.buffer_limit_bytes = device_fact<cl_ulong>(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 0);
  f.local_bytes = device_fact<cl_ulong>(device, CL_DEVICE_LOCAL_MEM_SIZE, 0);
  f.compute_units = device_fact<cl_uint>(device, CL_DEVICE_MAX_COMPUTE_UNITS, 1);
  f.clock_mhz = device_fact<cl_uint>(device, CL_DEVICE_MAX_CLOCK_FREQUENCY, 1000);
  f.group_limit = device_fact<std::size_t>(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, 1);
  return f;
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The source line that a build log's first "…:LINE:COLUMN: error" is about.
std::string failing_line(const std::string& log, const std::string& source) {
  const std::size_t error = log.find("error");
  if (error == std::string::npos) return {};
  const std::size_t start =
      log.rfind('\n', error) == std::string::npos ? 0 : log.rfind('\n', error) + 1;
  for (std::size_t at = log.find(':', start); at < error; at = log.find(':', at + 1)) {
    const std::size_t end = log.find(':', at + 1);
    if (end == std::string::npos || !is_number(std::string_view(log).substr(at + 1, end - at - 1)))
      continue;
    const auto wanted = std::stoul(log.substr(at + 1, end - at - 1));
    std::size_t from = 0;
    for (unsigned long line = 1; line < wanted && from != std::string::npos; ++line) {
      from = source.find('\n', from);
      if (from != std::string::npos) ++from;
    }
    if (from == std::string::npos) return {};
    return "; line " + std::to_string(wanted) + ": " +
           source.substr(from, std::min<std::size_t>(source.find('\n', from) - from, 200));
  }
  return {};
}

}  // namespace

Status driver_error(const char* call, cl_int code) {
  bp_code meaning = BP_INTERNAL;
  const char* hint = "";
  switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_RESOURCES:
    case CL_OUT_OF_HOST_MEMORY:
      meaning = BP_OUT_OF_MEMORY;
      hint = ": the device is out of memory or resources";
      break;
    case CL_INVALID_BUFFER_SIZE:
      meaning = BP_OUT_OF_MEMORY;
      hint = ": larger than the device's largest buffer";
      break;
    case CL_DEVICE_NOT_AVAILABLE:
      meaning = BP_DEVICE_LOST;
      hint = ": the device is gone";
      break;
    default:
      break;
  }
  return {meaning, std::string(call) + " failed with OpenCL error " + std::to_string(code) + hint};
}

std::vector<DeviceFacts> find_devices() {
  const SignalGuard signals;
  cl_uint platform_count = 0;
  const cl_int code = clGetPlatformIDs(0, nullptr, &platform_count);
  if (code != CL_SUCCESS || platform_count == 0)
    throw std::runtime_error(
        "no OpenCL platform: install a driver (Debian: pocl-opencl-icd) or set OCL_ICD_VENDORS to "
        "a folder with its .icd file");
  std::vector<cl_platform_id> platforms(platform_count);
  clGetPlatformIDs(platform_count, platforms.data(), nullptr);
  std::vector<DeviceFacts> found;
  for (cl_platform_id platform : platforms) {
    cl_uint count = 0;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) continue;
    std::vector<cl_device_id> devices(count);
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, devices.data(), nullptr) != CL_SUCCESS)
      continue;
    for (cl_device_id device : devices) found.push_back(facts_of(platform, device));
  }
  if (found.empty())
    throw std::runtime_error("no OpenCL device: " + std::to_string(platform_count) +
                             " platform(s) without a device");
  const char* wanted = std::getenv("BACKPLANE_OPENCL_DEVICE");
  std::string names;
  for (std::uint32_t i = 0; i < found.size(); ++i) {
    found[i].index = i;
    names += (i ? ", " : "") + std::to_string(i) + ": " + found[i].name;
  }
  if (wanted == nullptr || *wanted == 0) return found;
  std::erase_if(found, [&](const DeviceFacts& f) {
    if (is_number(wanted)) return std::to_string(f.index) != wanted;
    return f.name.find(wanted) == std::string::npos;
  });
  if (found.empty())
    throw std::runtime_error("BACKPLANE_OPENCL_DEVICE=" + std::string(wanted) +
                             " names none of the OpenCL devices (" + names + ")");
  return found;
}

Program::~Program() {
  for (cl_kernel kernel : free_) clReleaseKernel(kernel);
  if (program_ != nullptr) clReleaseProgram(program_);
}
Result<cl_kernel> Program::take() const {
  {
    std::unique_lock lock(mutex_);
    built_.wait(lock, [&] { return program_ != nullptr || !failure_.empty(); });
    if (!failure_.empty()) return Status(BP_INTERNAL, failure_);
    if (!free_.empty()) {
      cl_kernel kernel = free_.back();
      free_.pop_back();
      return kernel;
    }
  }
  cl_int code = CL_SUCCESS;
  cl_kernel kernel = clCreateKernel(program_, entry_.c_str(), &code);
  if (code != CL_SUCCESS) return driver_error("clCreateKernel", code);
  return kernel;
}
void Program::finish(cl_program program, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (program != nullptr) clRetainProgram(program);
    program_ = program;
    if (!status.ok()) failure_ = std::string(status.message());
  }
  built_.notify_all();
}
void Program::give(cl_kernel kernel) const {
  const std::lock_guard lock(mutex_);
  free_.push_back(kernel);
}

Context::~Context() {
  programs_.clear();
  faults_.reset();
  pool_.reset();
  if (queue_ != nullptr) clReleaseCommandQueue(queue_);
  if (context_ != nullptr) clReleaseContext(context_);
}

Status Context::open() {
  const std::lock_guard lock(open_mutex_);
  if (context_ != nullptr) return {};
  const SignalGuard signals;
  const cl_context_properties properties[] = {
      CL_CONTEXT_PLATFORM, reinterpret_cast<cl_context_properties>(facts_.platform), 0};
  cl_int code = CL_SUCCESS;
  cl_context context = clCreateContext(properties, 1, &facts_.device, nullptr, nullptr, &code);
  BP_CL_RETURN_IF_ERROR("clCreateContext", code);
  context_ = context;
  auto queue = create_queue();
  if (!queue.ok()) return queue.status();
  queue_ = *queue;
  std::uint64_t limit = facts_.memory_bytes;
  if (const char* text = std::getenv("BACKPLANE_OPENCL_MEMORY"); text != nullptr && is_number(text))
    limit = std::strtoull(text, nullptr, 10);
  pool_ = std::make_shared<Pool>(context_, limit);
  faults_ = std::make_shared<FaultPool>(context_, facts_.binds_host_memory);
  return {};
}

Result<cl_command_queue> Context::create_queue() const {
  cl_int code = CL_SUCCESS;
  cl_command_queue queue = clCreateCommandQueue(context_, facts_.device, 0, &code);
  if (code != CL_SUCCESS) return driver_error("clCreateCommandQueue", code);
  return queue;
}

std::string Context::cache_key(const std::string& source) const {
  const std::string text = source + '\0' + facts_.name + '\0' + facts_.version + '\0' +
                           facts_.driver + '\0' + std::string(kBuildOptions);
  // Two independent hashes: the host's cache compares keys alone.
  return "cl-" + std::to_string(kernelgen::hash_text(text)) + "-" +
         std::to_string(kernelgen::hash_text(text + "second")) + "-" + std::to_string(text.size());
}

Result<cl_program> Context::load_binary(const std::string& key) {
  bp_byte_sink* sink = sdk::host().bytes_create(sdk::host().host);
  cl_program program = nullptr;
  if (sink != nullptr && sdk::host().cache_get(sdk::host().host, sdk::raw(key), sink) == 1) {
    const bp_string bytes = sdk::host().bytes_view(sink);
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data);
    cl_int status = CL_SUCCESS, code = CL_SUCCESS;
    program =
        clCreateProgramWithBinary(context_, 1, &facts_.device, &bytes.size, &data, &status, &code);
    // What does not load, of another driver or torn, is built again.
    if (code != CL_SUCCESS || status != CL_SUCCESS ||
        clBuildProgram(program, 1, &facts_.device, kBuildOptions.data(), nullptr, nullptr) !=
            CL_SUCCESS) {
      if (program != nullptr) clReleaseProgram(program);
      program = nullptr;
    }
  }
  if (sink != nullptr) sdk::host().bytes_release(sink);
  return program;
}

void Context::save_binary(const std::string& key, cl_program program) {
  std::size_t size = 0;
  if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr) !=
          CL_SUCCESS ||
      size == 0)
    return;
  std::vector<unsigned char> binary(size);
  unsigned char* pointers[] = {binary.data()};
  if (clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof pointers, pointers, nullptr) ==
      CL_SUCCESS)
    sdk::host().cache_put(sdk::host().host, sdk::raw(key), binary.data(), binary.size());
}

Result<cl_program> Context::build(const std::string& source, const std::string& label) {
  const char* text = source.c_str();
  const std::size_t size = source.size();
  cl_int code = CL_SUCCESS;
  cl_program program = clCreateProgramWithSource(context_, 1, &text, &size, &code);
  if (code != CL_SUCCESS) return driver_error("clCreateProgramWithSource", code);
  code = clBuildProgram(program, 1, &facts_.device, kBuildOptions.data(), nullptr, nullptr);
  if (code == CL_SUCCESS) return program;
  std::size_t length = 0;
  clGetProgramBuildInfo(program, facts_.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length);
  std::string log(length, 0);
  clGetProgramBuildInfo(program, facts_.device, CL_PROGRAM_BUILD_LOG, length, log.data(), nullptr);
  clReleaseProgram(program);
  while (!log.empty() && (log.back() == 0 || log.back() == '\n')) log.pop_back();
  return Status(BP_INTERNAL, "the kernel of " + label + " does not build on " + facts_.name +
                                 failing_line(log, source) + "; log: " + log.substr(0, 2000));
}

std::shared_ptr<const Program> Context::program(const std::string& text, const std::string& entry,
                                                const std::string& label) {
  const std::lock_guard lock(program_mutex_);
  auto& known = programs_[text];
  if (known == nullptr) {
    known = std::make_shared<Program>(text, entry, label);
    pending_.push_back(known);
  }
  return known;
}

Result<cl_program> Context::find_or_build(std::span<const std::shared_ptr<Program>> kernels) {
  std::string source = kernelgen::print_library(kernelgen::Dialect::kOpenCL, kLanes), labels;
  for (const auto& kernel : kernels) {
    source += kernel->text();
    if (labels.size() < 200) labels += (labels.empty() ? "" : ", ") + kernel->label();
  }
  const std::string key = cache_key(source);
  auto loaded = load_binary(key);
  if (!loaded.ok() || *loaded != nullptr) return loaded;
  auto built = build(source, labels);
  if (built.ok()) save_binary(key, *built);
  return built;
}

Status Context::build_pending() {
  std::vector<std::shared_ptr<Program>> kernels;
  {
    const std::lock_guard lock(program_mutex_);
    kernels.swap(pending_);
  }
  if (kernels.empty()) return {};
  const SignalGuard signals;
  auto whole = find_or_build(kernels);
  if (whole.ok()) {
    for (const auto& kernel : kernels) kernel->finish(*whole, {});
    clReleaseProgram(*whole);
    return {};
  }
  // One by one, so that the message names the one that fails.
  Status first;
  for (const auto& kernel : kernels) {
    auto one = kernels.size() == 1 ? std::move(whole) : find_or_build({&kernel, 1});
    Status status = one.ok() ? Status() : one.status();
    kernel->finish(one.ok() ? *one : nullptr, status);
    if (one.ok()) clReleaseProgram(*one);
    if (first.ok() && !status.ok()) first = std::move(status);
  }
  if (!first.ok()) {
    const std::lock_guard lock(program_mutex_);
    for (const auto& kernel : kernels) programs_.erase(kernel->text());
  }
  return first;
}

Result<std::unique_ptr<Memory>> Context::wrap_host(void* data, std::uint64_t bytes) const {
  cl_int code = CL_SUCCESS;
  cl_mem memory =
      clCreateBuffer(context_, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, data, &code);
  if (code != CL_SUCCESS) return driver_error("clCreateBuffer over host memory", code);
  return std::make_unique<Memory>(memory, bytes);
}

Result<std::shared_ptr<Memory>> Context::constant(const void* data, std::uint64_t bytes) {
  auto memory = pool_->take(std::max<std::uint64_t>(bytes, 1));
  if (!memory.ok()) return memory.status();
  BP_CL_RETURN_IF_ERROR(
      "clEnqueueWriteBuffer",
      clEnqueueWriteBuffer(queue_, (*memory)->get(), CL_TRUE, 0, bytes, data, 0, nullptr, nullptr));
  return std::shared_ptr<Memory>(
      (*memory).release(), [pool = pool_](Memory* m) { pool->give(std::unique_ptr<Memory>(m)); });
}

}  // namespace backplane::opencl
