// Kernels' texts as the driver's programs: built together, kept on disk, named where they fail.
#include <backplane/kernelgen/kernel.hpp>
#include <backplane/sdk/signal_guard.hpp>

#include <algorithm>
#include <cstdlib>

#include "builders.h"
#include "context.h"

namespace backplane::opencl {
namespace {

constexpr std::string_view kBuildOptions = "-cl-std=CL1.2 -w";

bool has_kernels(cl_program program, std::span<const std::shared_ptr<ClProgram>> kernels) {
  std::size_t size = 0;
  if (clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, 0, nullptr, &size) != CL_SUCCESS)
    return false;
  std::string names(size, 0);
  clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, size, names.data(), nullptr);
  return std::all_of(kernels.begin(), kernels.end(), [&](const auto& kernel) {
    return names.find(kernel->entry()) != std::string::npos;
  });
}

std::string source_of(const kernels::Facts& facts,
                      std::span<const std::shared_ptr<ClProgram>> kernels) {
  std::string source(kBeginText);
  source +=
      kernelgen::print_library(kernelgen::Dialect::kOpenCL, facts.has_vectors() ? facts.lanes : 1);
  for (const auto& kernel : kernels) source += kernel->text();
  return source;
}

}  // namespace

ClProgram::~ClProgram() {
  for (cl_kernel kernel : free_) clReleaseKernel(kernel);
  if (program_ != nullptr) clReleaseProgram(program_);
}
Result<cl_kernel> ClProgram::take() const {
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
void ClProgram::finish(cl_program program, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (program != nullptr) clRetainProgram(program);
    program_ = program;
    if (!status.ok()) failure_ = std::string(status.message());
  }
  built_.notify_all();
}
void ClProgram::give(cl_kernel kernel) const {
  const std::lock_guard lock(mutex_);
  free_.push_back(kernel);
}

std::string Context::cache_key(const std::string& prefix, const std::string& source) const {
  return kernels::sealed_key(prefix, source + '\0' + device_.name + '\0' + device_.version + '\0' +
                                         device_.driver + '\0' + std::string(kBuildOptions));
}

// Null where there is none that is whole and has the kernels: built again then.
OwnedProgram Context::load_binary(const std::string& key,
                                  std::span<const std::shared_ptr<ClProgram>> kernels) {
  const std::string binary = kernels::get_sealed(key);  // drivers trust what they are given
  if (binary.empty()) return nullptr;
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const std::size_t size = binary.size();
  cl_int status = CL_SUCCESS, code = CL_SUCCESS;
  OwnedProgram program(
      clCreateProgramWithBinary(context_, 1, &device_.device, &size, &data, &status, &code));
  if (code == CL_SUCCESS && status == CL_SUCCESS &&
      clBuildProgram(program.get(), 1, &device_.device, kBuildOptions.data(), nullptr, nullptr) ==
          CL_SUCCESS &&
      has_kernels(program.get(), kernels))
    return program;
  return nullptr;
}

void Context::save_binary(const std::string& key, cl_program program) {
  std::size_t size = 0;
  if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr) !=
          CL_SUCCESS ||
      size == 0)
    return;
  std::string binary(size, 0);
  auto* pointer = reinterpret_cast<unsigned char*>(binary.data());
  if (clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof pointer, &pointer, nullptr) !=
      CL_SUCCESS)
    return;
  kernels::put_sealed(key, binary);
}

Result<OwnedProgram> Context::build(const std::string& source, const std::string& label) {
  const char* text = source.c_str();
  const std::size_t size = source.size();
  cl_int code = CL_SUCCESS;
  OwnedProgram program(clCreateProgramWithSource(context_, 1, &text, &size, &code));
  if (code != CL_SUCCESS) return driver_error("clCreateProgramWithSource", code);
  code = clBuildProgram(program.get(), 1, &device_.device, kBuildOptions.data(), nullptr, nullptr);
  if (code == CL_SUCCESS) return program;
  std::size_t length = 0;
  clGetProgramBuildInfo(program.get(), device_.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length);
  std::string log(length, 0);
  clGetProgramBuildInfo(program.get(), device_.device, CL_PROGRAM_BUILD_LOG, length, log.data(),
                        nullptr);
  while (!log.empty() && (log.back() == 0 || log.back() == '\n')) log.pop_back();
  return Status(BP_INTERNAL, "the kernel of " + label + " does not build on " + device_.name +
                                 kernels::failing_line(log, source) +
                                 "; log: " + log.substr(0, 2000));
}

std::shared_ptr<const kernels::Program> Context::program(const std::string& text,
                                                         const std::string& entry,
                                                         const std::string& label) {
  return programs_.find(text, entry, label);
}

Result<OwnedProgram> Context::find_or_build(std::span<const std::shared_ptr<ClProgram>> kernels) {
  const std::string source = source_of(facts(), kernels);
  const std::string labels = kernels::labels_of(kernels);
  if (device_.driver_caches) return build(source, labels);
  const std::string key = cache_key("cl", source);
  if (OwnedProgram loaded = load_binary(key, kernels)) return loaded;
  auto built = build(source, labels);
  if (built.ok()) save_binary(key, built->get());
  return built;
}

Status Context::build_pending() {
  Kernels kernels = programs_.take_pending();
  if (kernels.empty()) return {};
  const sdk::SignalGuard signals;
  const std::vector<Kernels> parts = kernels::deal(std::move(kernels), device_.builders);
  // One that runs already has the compiler in memory, this process need not load it.
  if (parts.size() > 1 || builders_.are_running()) build_ahead(parts);
  Status first;
  for (const Kernels& part : parts) {
    Status status = programs_.build(
        part, [&](auto some) { return find_or_build(some); },
        [](ClProgram& kernel, const OwnedProgram* program, const Status& why) {
          kernel.finish(program == nullptr ? nullptr : program->get(), why);
          return why;
        });
    if (first.ok()) first = std::move(status);
  }
  return first;
}

// Once: what other processes have built stays with the driver.
void Context::build_ahead(std::span<const Kernels> parts) {
  std::vector<BuildRequest> requests;
  std::string all;
  for (const Kernels& part : parts) {
    BuildRequest& request = requests.emplace_back();
    request.source = source_of(facts(), part);
    for (const auto& kernel : part) request.entries.push_back(kernel->entry());
    all += request.source;
  }
  for (const char* place : {"POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"})
    if (const char* value = std::getenv(place)) all += std::string(1, '\0') + value;
  const std::string key = cache_key("ahead", all);
  if (kernels::get_sealed(key).empty() && builders_.build(kBuildOptions, requests))
    kernels::put_sealed(key, "built");
}

}  // namespace backplane::opencl
