// The plugin @NAME@: a device with an OpenCL driver, in-order queues, and generated kernels.
//
// It runs as it is on any driver that has OpenCL 2.0 with shared virtual memory. Make it yours:
// which device, the facts that kernels are shaped by, what info() says about speed.
#define CL_TARGET_OPENCL_VERSION 200
#include <CL/cl.h>
#include <backplane/kernels/build.hpp>
#include <backplane/kernels/program.hpp>
#include <backplane/sdk.hpp>

#include <cstring>
#include <stdexcept>

namespace plugin {

namespace bp = backplane::sdk;
namespace gen = backplane::kernels;
using bp::Result;
using bp::Status;

Status driver_error(const char* call, cl_int code) {
  const bool full = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES ||
                    code == CL_OUT_OF_HOST_MEMORY;
  // A queue is invalid once a kernel of it has failed; drivers of yours may say more.
  const bool lost = code == CL_DEVICE_NOT_AVAILABLE || code == CL_INVALID_COMMAND_QUEUE;
  const bp_code meaning = full ? BP_OUT_OF_MEMORY : lost ? BP_DEVICE_LOST : BP_INTERNAL;
  return {meaning, std::string(call) + " failed with OpenCL error " + std::to_string(code)};
}
#define RETURN_IF_FAILED(call, ...) \
  if (const cl_int code = (__VA_ARGS__); code != CL_SUCCESS) return driver_error(call, code)

// ---- The device -----------------------------------------------------------------------------

std::string text_of(cl_device_id device, cl_device_info what) {
  std::size_t size = 0;
  clGetDeviceInfo(device, what, 0, nullptr, &size);
  std::string text(size, 0);
  clGetDeviceInfo(device, what, size, text.data(), nullptr);
  return text.c_str();
}
template <class T>
T number_of(cl_device_id device, cl_device_info what, T fallback) {
  T value = fallback;
  return clGetDeviceInfo(device, what, sizeof value, &value, nullptr) == CL_SUCCESS ? value
                                                                                    : fallback;
}

// The first device whose name has the words of @NAME@_DEVICE. Names are asked before the device is
// opened, so nothing is made here. What it throws is said to the user.
cl_device_id find_device() {
  const char* words = std::getenv("@NAME@_DEVICE");
  cl_platform_id platforms[16];
  cl_uint platform_count = 0;
  clGetPlatformIDs(16, platforms, &platform_count);
  std::string seen;
  for (cl_uint p = 0; p < std::min<cl_uint>(platform_count, 16); ++p) {
    cl_device_id devices[16];
    cl_uint count = 0;
    if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 16, devices, &count) != CL_SUCCESS)
      continue;
    for (cl_uint d = 0; d < std::min<cl_uint>(count, 16); ++d) {
      const std::string name = text_of(devices[d], CL_DEVICE_NAME);
      seen += (seen.empty() ? "" : ", ") + name;
      const auto memory =
          number_of<cl_device_svm_capabilities>(devices[d], CL_DEVICE_SVM_CAPABILITIES, 0);
      if ((memory & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) == 0) continue;
      if (words == nullptr || name.find(words) != std::string::npos) return devices[d];
    }
  }
  throw std::runtime_error("no device: no OpenCL device with shared virtual memory" +
                           (words ? " is named " + std::string(words) : std::string()) +
                           (seen.empty() ? "; there is no OpenCL driver" : "; there is: " + seen));
}

// What texts of kernels are shaped by: many small work-items in groups, or a few that compute a run
// of elements each, as a CPU's threads do.
gen::Facts device_facts(cl_device_id device) {
  gen::Facts facts;
  facts.dialect = backplane::kernelgen::Dialect::kOpenCL;
  facts.gpu = number_of<cl_device_type>(device, CL_DEVICE_TYPE, 0) != CL_DEVICE_TYPE_CPU;
  facts.lanes = facts.gpu ? 1 : 16;
  facts.has_fp64 = text_of(device, CL_DEVICE_EXTENSIONS).find("cl_khr_fp64") != std::string::npos;
  facts.group_limit = number_of<std::size_t>(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, 1);
  return facts;
}

// ---- Kernels --------------------------------------------------------------------------------

// Kernel objects carry their arguments, so that each launch makes one of its own.
class Program final : public gen::Program {
 public:
  Program(std::string text, std::string entry, std::string label)
      : text_(std::move(text)), entry_(std::move(entry)), label_(std::move(label)) {}
  ~Program() override {
    if (program_ != nullptr) clReleaseProgram(program_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  const std::string& text() const { return text_; }
  const std::string& entry() const { return entry_; }
  const std::string& label() const { return label_; }
  void set(cl_program program) {
    clRetainProgram(program);
    program_ = program;
  }
  cl_program get() const { return program_; }

 private:
  std::string text_, entry_, label_;
  cl_program program_ = nullptr;
};

// Context, memory and programs of the device: what generated kernels need of it.
class Target final : public gen::Target {
 public:
  explicit Target(cl_device_id device) : gen::Target(device_facts(device)), device_(device) {}
  ~Target() override {
    programs_.clear();
    if (queue_ != nullptr) clReleaseCommandQueue(queue_);
    if (context_ != nullptr) clReleaseContext(context_);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  Status open() {
    const std::lock_guard lock(open_);
    if (queue_ != nullptr) return {};
    cl_int code = CL_SUCCESS;
    if (context_ == nullptr)
      context_ = clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &code);
    if (code != CL_SUCCESS) return driver_error("clCreateContext", code);
    queue_ = clCreateCommandQueueWithProperties(context_, device_, nullptr, &code);
    return code == CL_SUCCESS ? Status() : driver_error("clCreateCommandQueue", code);
  }
  cl_device_id device() const { return device_; }
  cl_command_queue queue() const { return queue_; }

  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) {
    void* memory = clSVMAlloc(context_, CL_MEM_READ_WRITE, bytes + 1, 0);
    if (memory == nullptr)
      return Status(BP_OUT_OF_MEMORY, "the device has no " + std::to_string(bytes) + " bytes left");
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                      [this](std::byte* at) { clSVMFree(context_, at); });
  }
  // Done when it returns.
  Status copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return {};
    RETURN_IF_FAILED("clEnqueueSVMMemcpy",
                     clEnqueueSVMMemcpy(queue_, CL_TRUE, to, from, bytes, 0, nullptr, nullptr));
    return {};
  }

  std::shared_ptr<const gen::Program> program(const std::string& text, const std::string& entry,
                                              const std::string& label) override {
    return programs_.find(text, entry, label);
  }
  Status build_pending() override {
    const std::lock_guard lock(build_);  // whoever asks next finds what is built
    auto pending = programs_.take_pending();
    if (pending.empty()) return {};
    return programs_.build(
        std::span<const std::shared_ptr<Program>>(pending),
        [&](auto kernels) { return compile(kernels); },
        [](Program& kernel, const std::shared_ptr<_cl_program>* built, const Status& status) {
          if (built != nullptr) kernel.set(built->get());
          return status;
        });
  }
  Result<std::shared_ptr<std::byte>> constant(const void* data, std::uint64_t bytes) override {
    auto memory = allocate(bytes);
    if (!memory.ok()) return memory;
    BP_SDK_RETURN_IF_ERROR(copy(memory->get(), data, bytes));
    return memory;
  }
  std::uint32_t fault_number(const std::string& label) override { return faults_.number_of(label); }
  Status fault(std::uint32_t number) { return faults_.outcome(number); }

 private:
  Result<std::shared_ptr<_cl_program>> compile(std::span<const std::shared_ptr<Program>> kernels) {
    std::string source =
        backplane::kernelgen::print_library(facts().dialect, facts().has_vectors() ? 16 : 1);
    for (const auto& kernel : kernels) source += kernel->text();
    const char* text = source.c_str();
    cl_int code = CL_SUCCESS;
    const std::shared_ptr<_cl_program> made(
        clCreateProgramWithSource(context_, 1, &text, nullptr, &code), clReleaseProgram);
    if (code != CL_SUCCESS) return driver_error("clCreateProgramWithSource", code);
    code = clBuildProgram(made.get(), 1, &device_, "-cl-std=CL1.2 -w", nullptr, nullptr);
    if (code == CL_SUCCESS) return made;
    std::size_t size = 0;
    clGetProgramBuildInfo(made.get(), device_, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
    std::string log(size, 0);
    clGetProgramBuildInfo(made.get(), device_, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
    return Status(BP_INTERNAL, "the kernel of " + gen::labels_of(kernels) + " does not build" +
                                   gen::failing_line(log, source) + "; log: " + log.c_str());
  }

  cl_device_id device_;
  std::mutex open_, build_;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
  gen::ProgramTable<Program> programs_;
  gen::FaultLabels faults_;
};

// The launches of one call, in order on the device's queue.
class Launcher final : public gen::Launcher {
 public:
  explicit Launcher(Target& target) : target_(target) {}

  Status launch(const gen::Program& program, std::span<const gen::Bound> arguments,
                const gen::Extent& items, const gen::Extent& group,
                const std::shared_ptr<const gen::Work>& work) override {
    const auto& built = static_cast<const Program&>(program);
    cl_int code = CL_SUCCESS;
    const std::shared_ptr<_cl_kernel> kernel(
        clCreateKernel(built.get(), built.entry().c_str(), &code), clReleaseKernel);
    if (code != CL_SUCCESS) return driver_error("clCreateKernel", code);
    const std::uint64_t no_offset = 0;
    cl_uint at = 0;
    for (const gen::Bound& a : arguments) {
      if (code == CL_SUCCESS)
        code = a.is_memory ? clSetKernelArgSVMPointer(kernel.get(), at++, a.address)
                           : clSetKernelArg(kernel.get(), at++, sizeof a.bits, &a.bits);
      if (code == CL_SUCCESS && a.is_memory)  // the offset from it
        code = clSetKernelArg(kernel.get(), at++, sizeof no_offset, &no_offset);
    }
    if (code == CL_SUCCESS)
      code = clEnqueueNDRangeKernel(target_.queue(), kernel.get(), 3, nullptr, items.data(),
                                    group.data(), 0, nullptr, nullptr);
    return code == CL_SUCCESS ? Status() : driver_error(work->name.c_str(), code);
  }
  Status fill_zero(std::byte* address, std::uint64_t bytes,
                   const std::shared_ptr<const gen::Work>& work) override {
    const cl_uchar zero = 0;
    RETURN_IF_FAILED(work->name.c_str(),
                     clEnqueueSVMMemFill(target_.queue(), address, &zero, sizeof zero, bytes, 0,
                                         nullptr, nullptr));
    return {};
  }
  Result<std::byte*> fault_word(const std::shared_ptr<const gen::Work>&) override {
    if (fault_ == nullptr) {
      const std::uint32_t zero = 0;
      auto made = target_.constant(&zero, sizeof zero);
      if (!made.ok()) return made.status();
      fault_ = std::move(*made);
    }
    return fault_.get();
  }
  // Done, or not: what was launched has run when it returns.
  Status finish(const Status& status) {
    const cl_int code = clFinish(target_.queue());
    if (!status.ok()) return status;
    if (code != CL_SUCCESS) return driver_error("the device's work", code);
    if (fault_ == nullptr) return {};
    std::uint32_t found = 0;
    BP_SDK_RETURN_IF_ERROR(target_.copy(&found, fault_.get(), sizeof found));
    return target_.fault(found);
  }

 private:
  Target& target_;
  std::shared_ptr<std::byte> fault_;
};

class Executable final : public gen::GeneratedProgram {
 public:
  Executable(const std::shared_ptr<Target>& target, const bp::Subgraph& graph,
             const bp::CompileOptions& options)
      : GeneratedProgram(target, graph, options), target_(target) {}
  Status execute(const bp::Execution& call) override {
    BP_SDK_RETURN_IF_ERROR(prepare(call));
    Launcher launcher(*target_);
    return launcher.finish(run(call, &launcher));
  }

 private:
  std::shared_ptr<Target> target_;
};

class Device final : public bp::Device {
 public:
  // Called before the device is opened. Speeds decide what is worth a transfer; what is left out is
  // guessed.
  bp::DeviceInfo info() const override {
    const cl_device_id device = target_->device();
    bp::DeviceInfo info;
    info.name = text_of(device, CL_DEVICE_NAME);
    info.kind = target_->facts().gpu ? BP_DEVICE_GPU : BP_DEVICE_CPU;
    info.architecture = text_of(device, CL_DEVICE_VERSION);
    info.driver = text_of(device, CL_DRIVER_VERSION);
    info.memory_bytes = number_of<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE, 0);
    info.buffer_limit_bytes = number_of<cl_ulong>(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 0);
    return info;
  }
  Status open() override { return target_->open(); }

  Result<bp::Buffer> allocate(std::size_t bytes) override {
    auto memory = target_->allocate(bytes);
    if (!memory.ok()) return memory.status();
    std::byte* const address = memory->get();
    return bp::Buffer(address, bytes, [owner = std::move(*memory)](void*) {});
  }
  // To, from, or on the device; at most one end lies in the host's memory.
  Status copy(const bp::Copy& copy, const bp::Order& order) override {
    return queues_.submit(order, true, [copy, target = target_]() -> Status {
      return target->copy(copy.target.data(), copy.source.data(), copy.bytes());
    });
  }

  bp::Claims claims(const bp::GraphView& graph) override {
    return gen::claims(target_->facts(), graph);
  }
  Result<std::unique_ptr<bp::Executable>> compile(const bp::Subgraph& graph,
                                                  const bp::CompileOptions& options) override {
    BP_SDK_RETURN_IF_ERROR(target_->open());
    BP_SDK_RETURN_IF_ERROR(Executable::check(target_->facts(), graph, options));
    return std::make_unique<bp::QueuedProgram>(
        queues_, std::make_shared<Executable>(target_, graph, options));
  }

  Result<std::unique_ptr<bp::Stream>> create_stream() override { return queues_.create_stream(); }
  Result<std::unique_ptr<bp::Event>> create_event() override { return queues_.create_event(); }

 private:
  std::shared_ptr<Target> target_ = std::make_shared<Target>(find_device());
  bp::Queues queues_;
};

}  // namespace plugin

BP_PLUGIN("@NAME@", "@NAME@ Inc.", "0.1.0", plugin::Device)
