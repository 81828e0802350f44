// Kernels' texts as modules: built by NVRTC side by side, kept on disk, named where they fail.
#include <backplane/kernelgen/kernel.hpp>
#include <backplane/sdk/signal_guard.hpp>

#include <future>
#include <thread>

#include "context.h"

namespace backplane::cuda {
namespace {

constexpr std::size_t kMostBuilders = 16;

// A product is rounded before something is added to it, as in PyTorch's kernels, where x * x - y *
// y of equal numbers is 0; what wants both in one step says BP_FMA.
constexpr const char* kOptions[] = {"--std=c++17", "--fmad=false", "-w"};

std::string source_of(std::span<const std::shared_ptr<CudaProgram>> kernels) {
  std::string source = kernelgen::print_library(kernelgen::Dialect::kCuda, 1);
  for (const auto& kernel : kernels) source += kernel->text();
  return source;
}

Status nvrtc_error(const char* call, Code code) {
  return {BP_INTERNAL, std::string(call) + " failed: " + nvrtc().nvrtcGetErrorString(code)};
}

// Machine code of the architecture.
Result<std::string> compile(const std::string& source, const std::string& architecture,
                            const std::string& labels) {
  const Nvrtc& n = nvrtc();
  ProgramHandle program = nullptr;
  if (const Code code =
          n.nvrtcCreateProgram(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr);
      code != kSuccess)
    return nvrtc_error("nvrtcCreateProgram", code);
  const std::unique_ptr<ProgramHandle, void (*)(ProgramHandle*)> owner(
      &program, [](ProgramHandle* p) { nvrtc().nvrtcDestroyProgram(p); });
  const std::string target = "--gpu-architecture=" + architecture;
  std::vector<const char*> options(std::begin(kOptions), std::end(kOptions));
  options.push_back(target.c_str());
  const Code code =
      n.nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  std::size_t size = 0;
  if (code != kSuccess) {
    n.nvrtcGetProgramLogSize(program, &size);
    std::string log(size, 0);
    n.nvrtcGetProgramLog(program, log.data());
    while (!log.empty() && (log.back() == 0 || log.back() == '\n')) log.pop_back();
    constexpr std::size_t kMostLog = 2000;
    return Status(BP_INTERNAL, "the kernel of " + labels + " does not build for " + architecture +
                                   " (" + n.nvrtcGetErrorString(code) + ")" +
                                   kernels::failing_line(log, source) +
                                   "; log: " + log.substr(0, kMostLog));
  }
  if (const Code sized = n.nvrtcGetCUBINSize(program, &size); sized != kSuccess)
    return nvrtc_error("nvrtcGetCUBINSize", sized);
  std::string binary(size, 0);
  if (const Code got = n.nvrtcGetCUBIN(program, binary.data()); got != kSuccess)
    return nvrtc_error("nvrtcGetCUBIN", got);
  return binary;
}

}  // namespace

Module::~Module() {
  const Current current(context_);
  driver().cuModuleUnload(module_);
}

Result<FunctionHandle> CudaProgram::function() const {
  if (FunctionHandle known = function_.load(std::memory_order_acquire)) [[likely]]
    return known;
  std::unique_lock lock(mutex_);
  built_.wait(lock, [&] { return function_.load() != nullptr || !failure_.empty(); });
  if (!failure_.empty()) return Status(BP_INTERNAL, failure_);
  return function_.load();
}

Status CudaProgram::finish(std::shared_ptr<const Module> module, Status status) {
  FunctionHandle function = nullptr;
  if (status.ok())
    if (const Code code = driver().cuModuleGetFunction(&function, module->get(), entry_.c_str());
        code != kSuccess)
      status = driver_error("cuModuleGetFunction", code);
  {
    const std::lock_guard lock(mutex_);
    if (!status.ok()) failure_ = std::string(status.message());
    module_ = std::move(module);
    function_.store(function, std::memory_order_release);
  }
  built_.notify_all();
  return status;
}

Result<std::shared_ptr<const Module>> Context::load(const std::string& binary) {
  ModuleHandle module = nullptr;
  const Code code = retried([&] { return driver().cuModuleLoadData(&module, binary.data()); });
  if (code != kSuccess) return failure("cuModuleLoadData", code);
  return std::make_shared<const Module>(context_, module);
}

Result<std::shared_ptr<const Module>> Context::find_or_build(
    std::span<const std::shared_ptr<CudaProgram>> kernels) {
  const Current current(context_);
  const std::string source = source_of(kernels);
  std::string built_by = device_.architecture() + '\0' + std::to_string(nvrtc().major) + "." +
                         std::to_string(nvrtc().minor);
  for (const char* option : kOptions) built_by.append(1, '\0').append(option);
  const std::string key = kernels::sealed_key("cuda", source + '\0' + built_by);
  if (const std::string kept = kernels::get_sealed(key); !kept.empty())
    if (auto loaded = load(kept); loaded.ok()) return loaded;
  auto binary = compile(source, device_.architecture(), kernels::labels_of(kernels));
  if (!binary.ok()) return binary.status();
  auto loaded = load(*binary);
  if (loaded.ok()) kernels::put_sealed(key, *binary);
  return loaded;
}

Status Context::build_pending() {
  Kernels all = programs_.take_pending();
  if (all.empty()) return {};
  const sdk::SignalGuard signals;
  const std::vector<Kernels> parts = kernels::deal(
      std::move(all), std::min<std::size_t>(std::thread::hardware_concurrency(), kMostBuilders));
  const auto build = [&](const Kernels& part) {
    return programs_.build(
        std::span<const std::shared_ptr<CudaProgram>>(part),
        [&](auto some) { return find_or_build(some); },
        [&](CudaProgram& kernel, const std::shared_ptr<const Module>* module, const Status& why) {
          const Current current(context_);
          return kernel.finish(module == nullptr ? nullptr : *module, why);
        });
  };
  std::vector<std::future<Status>> others;
  for (std::size_t i = 1; i < parts.size(); ++i)
    others.push_back(std::async(std::launch::async, build, std::cref(parts[i])));
  Status first = build(parts[0]);
  for (auto& other : others) {
    Status status = other.get();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace backplane::cuda
