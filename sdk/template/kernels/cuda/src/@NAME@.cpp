// The plugin @NAME@: a device whose kernel language is CUDA C, in-order queues, and generated
// kernels that are built at run time.
//
// It runs as it is on NVIDIA's driver. Make it yours: the names in driver.h, which device, the
// facts that kernels are shaped by, what info() says about speed.
#include <backplane/kernels/build.hpp>
#include <backplane/kernels/program.hpp>
#include <backplane/sdk.hpp>

#include <stdexcept>

#include "driver.h"

namespace plugin {

namespace bp = backplane::sdk;
namespace gen = backplane::kernels;
using bp::Result;
using bp::Status;

Status driver_error(const char* call, Code code) {
  const char* words = nullptr;
  driver().cuGetErrorString(code, &words);
  const bp_code meaning = code == kOutOfMemory      ? BP_OUT_OF_MEMORY
                          : code >= kIllegalAddress ? BP_DEVICE_LOST
                                                    : BP_INTERNAL;
  return {meaning, std::string(call) + " failed with error " + std::to_string(code) +
                       (words != nullptr ? ": " + std::string(words) : std::string())};
}
#define RETURN_IF_FAILED(call, ...) \
  if (const Code code = (__VA_ARGS__); code != kSuccess) return driver_error(call, code)

// ---- The device -----------------------------------------------------------------------------

// The first device. It is asked for before the device is opened, so nothing is made here. What it
// throws is said to the user.
DeviceId find_device() {
  int count = 0;
  if (const Code code = driver().cuInit(0); code != kSuccess)
    throw std::runtime_error("no device: " + std::string(driver_error("cuInit", code).message()));
  driver().cuDeviceGetCount(&count);
  if (count == 0) throw std::runtime_error("no device: the driver has none");
  compiler();
  DeviceId device = 0;
  driver().cuDeviceGet(&device, 0);
  return device;
}
int attribute(DeviceId device, int which, int fallback) {
  int value = fallback;
  return driver().cuDeviceGetAttribute(&value, which, device) == kSuccess ? value : fallback;
}

// What texts of kernels are shaped by.
gen::Facts device_facts(DeviceId device) {
  gen::Facts facts;
  facts.dialect = backplane::kernelgen::Dialect::kCuda;
  facts.gpu = true;
  facts.lanes = 1;
  facts.group_limit = static_cast<std::size_t>(attribute(device, kMaxThreadsPerBlock, 256));
  return facts;
}

// The calling thread's context while it lives.
class Current {
 public:
  explicit Current(ContextHandle context) { driver().cuCtxPushCurrent_v2(context); }
  ~Current() {
    ContextHandle popped = nullptr;
    driver().cuCtxPopCurrent_v2(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

// ---- Kernels --------------------------------------------------------------------------------

class Module {
 public:
  Module(ContextHandle context, ModuleHandle module) : context_(context), module_(module) {}
  ~Module() {
    const Current current(context_);
    driver().cuModuleUnload(module_);
  }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ModuleHandle get() const { return module_; }

 private:
  ContextHandle context_;
  ModuleHandle module_;
};

class Program final : public gen::Program {
 public:
  Program(std::string text, std::string entry, std::string label)
      : text_(std::move(text)), entry_(std::move(entry)), label_(std::move(label)) {}
  const std::string& text() const { return text_; }
  const std::string& label() const { return label_; }
  FunctionHandle get() const { return function_; }
  Status set(std::shared_ptr<Module> module) {
    RETURN_IF_FAILED("cuModuleGetFunction",
                     driver().cuModuleGetFunction(&function_, module->get(), entry_.c_str()));
    module_ = std::move(module);
    return {};
  }

 private:
  std::string text_, entry_, label_;
  std::shared_ptr<Module> module_;
  FunctionHandle function_ = nullptr;
};

// Context, memory and programs of the device: what generated kernels need of it.
class Target final : public gen::Target {
 public:
  explicit Target(DeviceId device) : gen::Target(device_facts(device)), device_(device) {}

  Status open() {
    const std::lock_guard lock(open_);
    if (stream_ != nullptr) return {};
    if (context_ == nullptr)
      RETURN_IF_FAILED("cuDevicePrimaryCtxRetain",
                       driver().cuDevicePrimaryCtxRetain(&context_, device_));
    const Current current(context_);
    RETURN_IF_FAILED("cuStreamCreate", driver().cuStreamCreate(&stream_, 1));
    return {};
  }
  DeviceId device() const { return device_; }
  ContextHandle context() const { return context_; }
  StreamHandle stream() const { return stream_; }

  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) {
    const Current current(context_);
    Address address = 0;
    RETURN_IF_FAILED("cuMemAlloc", driver().cuMemAlloc_v2(&address, bytes + 1));
    return std::shared_ptr<std::byte>(reinterpret_cast<std::byte*>(address),
                                      [context = context_](std::byte* at) {
                                        const Current current(context);
                                        driver().cuMemFree_v2(reinterpret_cast<Address>(at));
                                      });
  }
  // Done when it returns.
  enum class Way { kToDevice, kToHost, kOnDevice };
  Status copy(Way way, void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return {};
    const Current current(context_);
    const auto target = reinterpret_cast<Address>(to), source = reinterpret_cast<Address>(from);
    const Driver& d = driver();
    RETURN_IF_FAILED(
        "the copy", way == Way::kToDevice ? d.cuMemcpyHtoDAsync_v2(target, from, bytes, stream_)
                    : way == Way::kToHost ? d.cuMemcpyDtoHAsync_v2(to, source, bytes, stream_)
                                          : d.cuMemcpyDtoDAsync_v2(target, source, bytes, stream_));
    RETURN_IF_FAILED("the copy", d.cuStreamSynchronize(stream_));
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
    const Current current(context_);
    return programs_.build(
        std::span<const std::shared_ptr<Program>>(pending),
        [&](auto kernels) { return compile(kernels); },
        [](Program& kernel, const std::shared_ptr<Module>* built, const Status& status) {
          return built == nullptr ? status : kernel.set(*built);
        });
  }
  Result<std::shared_ptr<std::byte>> constant(const void* data, std::uint64_t bytes) override {
    auto memory = allocate(bytes);
    if (!memory.ok()) return memory;
    BP_SDK_RETURN_IF_ERROR(copy(Way::kToDevice, memory->get(), data, bytes));
    return memory;
  }
  std::uint32_t fault_number(const std::string& label) override { return faults_.number_of(label); }
  Status fault(std::uint32_t number) { return faults_.outcome(number); }

 private:
  Result<std::shared_ptr<Module>> compile(std::span<const std::shared_ptr<Program>> kernels) {
    std::string source = backplane::kernelgen::print_library(facts().dialect, 1);
    for (const auto& kernel : kernels) source += kernel->text();
    const Compiler& c = compiler();
    ProgramHandle made = nullptr;
    if (const Code code =
            c.nvrtcCreateProgram(&made, source.c_str(), "kernels.cu", 0, nullptr, nullptr);
        code != kSuccess)
      return Status(BP_INTERNAL, c.nvrtcGetErrorString(code));
    const std::shared_ptr<void> owner(nullptr, [&](void*) { c.nvrtcDestroyProgram(&made); });
    const std::string architecture = "--gpu-architecture=sm_" +
                                     std::to_string(attribute(device_, kMajor, 8)) +
                                     std::to_string(attribute(device_, kMinor, 0));
    const char* options[] = {architecture.c_str(), "--std=c++17", "-w"};
    std::size_t size = 0;
    if (c.nvrtcCompileProgram(made, 3, options) != kSuccess) {
      c.nvrtcGetProgramLogSize(made, &size);
      std::string log(size, 0);
      c.nvrtcGetProgramLog(made, log.data());
      return Status(BP_INTERNAL, "the kernel of " + gen::labels_of(kernels) + " does not build" +
                                     gen::failing_line(log, source) + "; log: " + log.c_str());
    }
    c.nvrtcGetCUBINSize(made, &size);
    std::string binary(size, 0);
    c.nvrtcGetCUBIN(made, binary.data());
    ModuleHandle module = nullptr;
    RETURN_IF_FAILED("cuModuleLoadData", driver().cuModuleLoadData(&module, binary.data()));
    return std::make_shared<Module>(context_, module);
  }

  DeviceId device_;
  std::mutex open_, build_;
  ContextHandle context_ = nullptr;  // the process's own: it goes with it
  StreamHandle stream_ = nullptr;
  gen::ProgramTable<Program> programs_;
  gen::FaultLabels faults_;
};

// The launches of one call, in order on the device's stream.
class Launcher final : public gen::Launcher {
 public:
  explicit Launcher(Target& target) : target_(target), current_(target.context()) {}

  Status launch(const gen::Program& program, std::span<const gen::Bound> arguments,
                const gen::Extent& items, const gen::Extent& group,
                const std::shared_ptr<const gen::Work>& work) override {
    const FunctionHandle function = static_cast<const Program&>(program).get();
    if (function == nullptr) return {BP_INTERNAL, work->name + ": the kernel was not built"};
    static std::uint64_t no_offset = 0;
    std::vector<void*> parameters;
    for (const gen::Bound& a : arguments) {
      parameters.push_back(a.is_memory ? static_cast<void*>(const_cast<std::byte**>(&a.address))
                                       : const_cast<std::uint64_t*>(&a.bits));
      if (a.is_memory) parameters.push_back(&no_offset);
    }
    unsigned blocks[3], threads[3];
    for (int d = 0; d < 3; ++d) {
      threads[d] = static_cast<unsigned>(group[d]);
      blocks[d] = static_cast<unsigned>(items[d] / group[d]);
    }
    RETURN_IF_FAILED(
        work->name.c_str(),
        driver().cuLaunchKernel(function, blocks[0], blocks[1], blocks[2], threads[0], threads[1],
                                threads[2], 0, target_.stream(), parameters.data(), nullptr));
    return {};
  }
  Status fill_zero(std::byte* address, std::uint64_t bytes,
                   const std::shared_ptr<const gen::Work>& work) override {
    RETURN_IF_FAILED(
        work->name.c_str(),
        driver().cuMemsetD8Async(reinterpret_cast<Address>(address), 0, bytes, target_.stream()));
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
    const Code code = driver().cuStreamSynchronize(target_.stream());
    if (!status.ok()) return status;
    if (code != kSuccess) return driver_error("the device's work", code);
    if (fault_ == nullptr) return {};
    std::uint32_t found = 0;
    BP_SDK_RETURN_IF_ERROR(target_.copy(Target::Way::kToHost, &found, fault_.get(), sizeof found));
    return target_.fault(found);
  }

 private:
  Target& target_;
  Current current_;
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
    const DeviceId device = target_->device();
    bp::DeviceInfo info;
    char name[256] = {};
    driver().cuDeviceGetName(name, sizeof name - 1, device);
    info.name = name;
    info.kind = BP_DEVICE_GPU;
    std::size_t bytes = 0;
    driver().cuDeviceTotalMem_v2(&bytes, device);
    info.memory_bytes = info.buffer_limit_bytes = bytes;
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
    const auto way = copy.source.buffer() == nullptr   ? Target::Way::kToDevice
                     : copy.target.buffer() == nullptr ? Target::Way::kToHost
                                                       : Target::Way::kOnDevice;
    return queues_.submit(order, true, [copy, way, target = target_]() -> Status {
      return target->copy(way, copy.target.data(), copy.source.data(), copy.bytes());
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
