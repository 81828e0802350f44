// Kernels' texts as the driver's programs: built together, kept on disk, named where they fail.
#include <backplane/kernelgen/kernel.hpp>

#include <algorithm>
#include <cstdlib>

#include "builders.h"
#include "context.h"
#include "sealed.h"
#include "signal_guard.h"

namespace backplane::opencl {
namespace {

constexpr std::string_view kBuildOptions = "-cl-std=CL1.2 -w";
constexpr std::int64_t kLanes = 16;  // of vectors in generated texts
// A process starts in the time of some kernels; each costs about that much text beside its own.
constexpr std::size_t kLeastKernels = 4, kKernelCharacters = 1000;

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

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

// The source line that a build log's first error is about: it stands as "…:LINE:COLUMN: …" beside
// it.
std::string failing_line(const std::string& log, const std::string& source) {
  const std::size_t error = log.find("error");
  if (error == std::string::npos) return {};
  const std::size_t before = log.rfind('\n', error);
  std::string_view text(log);
  text.remove_prefix(before == std::string::npos ? 0 : before + 1);
  text = text.substr(0, text.find('\n'));
  for (std::size_t at = text.find(':'); at != std::string_view::npos; at = text.find(':', at + 1)) {
    const std::string_view line = text.substr(at + 1, text.find(':', at + 1) - at - 1);
    const std::string_view column = text.substr(std::min(at + line.size() + 2, text.size()));
    if (!is_number(line) || !is_number(column.substr(0, column.find(':')))) continue;
    const auto wanted = std::stoul(std::string(line));
    std::size_t from = 0;
    for (unsigned long n = 1; n < wanted && from != std::string::npos; ++n) {
      from = source.find('\n', from);
      if (from != std::string::npos) ++from;
    }
    if (from == std::string::npos) return {};
    return "; line " + std::string(line) + ": " +
           source.substr(from, std::min<std::size_t>(source.find('\n', from) - from, 200));
  }
  return {};
}

std::string source_of(std::span<const std::shared_ptr<ClProgram>> kernels) {
  std::string source(kBeginText);
  source += kernelgen::print_library(kernelgen::Dialect::kOpenCL, kLanes);
  for (const auto& kernel : kernels) source += kernel->text();
  return source;
}

// Parts that take about the same time to build: that goes with the length of a text. The same each
// time, because a driver knows a program by its text.
std::vector<Kernels> deal(Kernels kernels, std::size_t builders) {
  const std::size_t count = std::min(builders, kernels.size() / kLeastKernels);
  if (count < 2) return {std::move(kernels)};
  std::stable_sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) {
    return a->text().size() > b->text().size();
  });
  std::vector<Kernels> parts(count);
  std::vector<std::size_t> sizes(count);
  for (auto& kernel : kernels) {
    const auto least = std::min_element(sizes.begin(), sizes.end());
    *least += kernel->text().size() + kKernelCharacters;
    parts[static_cast<std::size_t>(least - sizes.begin())].push_back(std::move(kernel));
  }
  return parts;
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

std::string Context::cache_key(const std::string& source) const {
  const std::string text = source + '\0' + device_.name + '\0' + device_.version + '\0' +
                           device_.driver + '\0' + std::string(kBuildOptions);
  // Two independent hashes: the host's cache compares keys alone.
  return "cl-" + std::to_string(kernelgen::hash_text(text)) + "-" +
         std::to_string(kernelgen::hash_text(text + "second")) + "-" + std::to_string(text.size());
}

// Null where there is none that is whole and has the kernels: built again then.
cl_program Context::load_binary(const std::string& key,
                                std::span<const std::shared_ptr<ClProgram>> kernels) {
  const std::string binary = get_sealed(key);  // drivers trust what they are given
  if (binary.empty()) return nullptr;
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const std::size_t size = binary.size();
  cl_int status = CL_SUCCESS, code = CL_SUCCESS;
  cl_program program =
      clCreateProgramWithBinary(context_, 1, &device_.device, &size, &data, &status, &code);
  if (code == CL_SUCCESS && status == CL_SUCCESS &&
      clBuildProgram(program, 1, &device_.device, kBuildOptions.data(), nullptr, nullptr) ==
          CL_SUCCESS &&
      has_kernels(program, kernels))
    return program;
  if (program != nullptr) clReleaseProgram(program);
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
  put_sealed(key, binary);
}

Result<cl_program> Context::build(const std::string& source, const std::string& label) {
  const char* text = source.c_str();
  const std::size_t size = source.size();
  cl_int code = CL_SUCCESS;
  cl_program program = clCreateProgramWithSource(context_, 1, &text, &size, &code);
  if (code != CL_SUCCESS) return driver_error("clCreateProgramWithSource", code);
  code = clBuildProgram(program, 1, &device_.device, kBuildOptions.data(), nullptr, nullptr);
  if (code == CL_SUCCESS) return program;
  std::size_t length = 0;
  clGetProgramBuildInfo(program, device_.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length);
  std::string log(length, 0);
  clGetProgramBuildInfo(program, device_.device, CL_PROGRAM_BUILD_LOG, length, log.data(), nullptr);
  clReleaseProgram(program);
  while (!log.empty() && (log.back() == 0 || log.back() == '\n')) log.pop_back();
  return Status(BP_INTERNAL, "the kernel of " + label + " does not build on " + device_.name +
                                 failing_line(log, source) + "; log: " + log.substr(0, 2000));
}

std::shared_ptr<const kernels::Program> Context::program(const std::string& text,
                                                         const std::string& entry,
                                                         const std::string& label) {
  const std::lock_guard lock(program_mutex_);
  auto& known = programs_[text];
  if (known == nullptr) {
    known = std::make_shared<ClProgram>(text, entry, label);
    pending_.push_back(known);
  }
  return known;
}

Result<cl_program> Context::find_or_build(std::span<const std::shared_ptr<ClProgram>> kernels) {
  const std::string source = source_of(kernels);
  std::string labels;
  for (const auto& kernel : kernels)
    if (labels.size() < 200) labels += (labels.empty() ? "" : ", ") + kernel->label();
  if (device_.driver_caches) return build(source, labels);
  const std::string key = cache_key(source);
  if (cl_program loaded = load_binary(key, kernels)) return loaded;
  auto built = build(source, labels);
  if (built.ok()) save_binary(key, *built);
  return built;
}

Status Context::build_pending() {
  Kernels kernels;
  {
    const std::lock_guard lock(program_mutex_);
    kernels.swap(pending_);
  }
  if (kernels.empty()) return {};
  const SignalGuard signals;
  const std::vector<Kernels> parts = deal(std::move(kernels), device_.builders);
  // One that runs already has the compiler in memory, this process need not load it.
  if (parts.size() > 1 || builders_.are_running()) build_ahead(parts);
  Status first;
  for (const Kernels& part : parts) {
    Status status = build_together(part);
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
    request.source = source_of(part);
    for (const auto& kernel : part) request.entries.push_back(kernel->entry());
    all += request.source;
  }
  for (const char* place : {"POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"})
    if (const char* value = std::getenv(place)) all += std::string(1, '\0') + value;
  const std::string key = "ahead-" + cache_key(all);
  if (get_sealed(key).empty() && builders_.build(kBuildOptions, requests)) put_sealed(key, "built");
}

Status Context::build_together(const Kernels& kernels) {
  auto whole = find_or_build(kernels);
  if (whole.ok()) {
    for (const auto& kernel : kernels) kernel->finish(*whole, {});
    clReleaseProgram(*whole);
    return {};
  }
  // One by one, so that the message names the one that fails.
  Status first;
  for (const auto& kernel : kernels) {
    auto one = kernels.size() == 1 ? whole : find_or_build({&kernel, 1});
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

}  // namespace backplane::opencl
