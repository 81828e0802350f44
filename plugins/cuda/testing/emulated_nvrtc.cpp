// NVRTC on the emulated device: "compiling" builds the text with the host's C++ compiler.
// BACKPLANE_EMULATED_NVRTC_VERSION: 13000. BACKPLANE_EMULATED_NVRTC: the file of a real NVRTC,
// which must build each program too, for all of BACKPLANE_EMULATED_NVRTC_ARCHITECTURES ("sm_80
// sm_90a sm_100"); what its assembler says of registers and spills is appended to the file that
// BACKPLANE_EMULATED_NVRTC_LOG names.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <regex>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/cuda/testing/emulated_device.h"

extern const char kEmulatedKernels[];  // the text of emulated_half.h, _kernels.h and _warps.h

namespace backplane::cuda {

struct ProgramObject {
  std::string source, binary, log;
};

namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

using Options = std::span<const char* const>;

bool contracts(Options options) {
  return std::ranges::none_of(
      options, [](const char* option) { return std::string_view(option) == "--fmad=false"; });
}

// What a real NVRTC says against the program; empty: nothing.
std::string check_with_real_compiler(const std::string& source, Options given) {
  const char* file = std::getenv("BACKPLANE_EMULATED_NVRTC");
  if (file == nullptr || *file == 0) return {};
  static const Nvrtc real = [&] {
    Nvrtc n;
    void* library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return n;
#define BP_NVRTC_ENTRY(name, ...) \
  n.name = reinterpret_cast<Function<__VA_ARGS__>>(::dlsym(library, #name));
    BP_CUDA_NVRTC(BP_NVRTC_ENTRY)
    return n;
  }();
  if (real.nvrtcCompileProgram == nullptr) return std::string("cannot open ") + file;
  const char* wanted = std::getenv("BACKPLANE_EMULATED_NVRTC_ARCHITECTURES");
  std::istringstream architectures(wanted != nullptr ? wanted : "sm_80 sm_90a sm_100");
  std::string refused, said;
  for (std::string architecture; refused.empty() && architectures >> architecture;) {
    ProgramHandle program = nullptr;
    real.nvrtcCreateProgram(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr);
    const std::string target = "--gpu-architecture=" + architecture;
    std::vector<const char*> options{target.c_str(), "--ptxas-options=-v"};
    std::ranges::copy_if(given, std::back_inserter(options), [](std::string_view option) {
      return !option.starts_with("--gpu-architecture");
    });
    const Code code =
        real.nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
    std::size_t size = 0;
    real.nvrtcGetProgramLogSize(program, &size);
    std::string log(size, 0);
    real.nvrtcGetProgramLog(program, log.data());
    real.nvrtcDestroyProgram(&program);
    if (code != kSuccess)
      refused = architecture + ": " + log;  // NOLINT(performance-inefficient-string-concatenation)
    else
      said += log;
  }
  if (const char* path = std::getenv("BACKPLANE_EMULATED_NVRTC_LOG"); path != nullptr) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    std::ofstream(path, std::ios::app) << said;
  }
  return refused;
}

}  // namespace

extern "C" {

#pragma GCC visibility push(default)

Code nvrtcVersion(int* major, int* minor) {
  *major = number_of("BACKPLANE_EMULATED_NVRTC_VERSION", 13000) / 1000;
  *minor = 0;
  return planned_failure(__func__);
}
const char* nvrtcGetErrorString(Code code) {
  return code == 0 ? "NVRTC_SUCCESS" : code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
Code nvrtcCreateProgram(ProgramHandle* out, const char* source, const char*, int,
                        const char* const*, const char* const*) {
  if (const Code code = planned_failure(__func__); code != kSuccess) return code;
  *out = new ProgramObject{source, {}, {}};
  return kSuccess;
}
Code nvrtcCompileProgram(ProgramHandle program, int count_of_options,
                         const char* const* first_option) {
  const Options options(first_option, static_cast<std::size_t>(count_of_options));
  constexpr Code kCompilation = 6;
  if (const Code code = planned_failure(__func__); code != kSuccess) {
    program->log = "kernels.cu(1): error: planned";
    return code;
  }
  program->log = check_with_real_compiler(program->source, options);
  if (!program->log.empty()) return kCompilation;
  static std::atomic<int> count{0};
  const std::string base = scratch_folder() / ("program-" + std::to_string(count++));
  {
    std::ofstream out(base + ".cpp");
    out << kEmulatedKernels << "\n#line 1 \"kernels.cu\"\n" << program->source << "\n";
    // A kernel's text ends where the next one begins.
    const std::regex name("(?:BP_KERNEL|__global__ void)\\s+(\\w+)\\s*\\(");
    const std::string& text = program->source;
    std::vector<std::pair<std::string, std::size_t>> found;
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
      found.emplace_back((*at)[1], static_cast<std::size_t>(at->position()));
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t end = i + 1 < found.size() ? found[i + 1].second : text.size();
      const std::string body = text.substr(found[i].second, end - found[i].second);
      bool meets = false;
      for (const char* word : {"BP_BARRIER", "BP_COLLECTIVE", "BP_SHUFFLE", "__syncthreads"})
        meets = meets || body.find(word) != std::string::npos;
      out << "EMULATED_KERNEL(" << found[i].first << ", " << (meets ? "true" : "false") << ")\n";
    }
  }
  // As NVIDIA's compiler: integers with a sign do not wrap around, products and sums are
  // contracted.
  const char* contraction = contracts(options) && __builtin_cpu_supports("fma")
                                ? "-mfma -fexpensive-optimizations -ffp-contract=fast"
                                : "-ffp-contract=off";
  const std::string command =
      std::string(BACKPLANE_EMULATED_COMPILER) + " -std=c++17 -nostdinc++ -O1 -w " + contraction +
      " -fPIC -shared -o " + base + ".so " + base + ".cpp -lm 2>" + base + ".log";
  Code code = kCompilation;  // not std::system, which changes signal handlers
  if (FILE* compiler = ::popen(command.c_str(), "r"); compiler != nullptr)
    if (::pclose(compiler) == 0) code = kSuccess;
  program->log = read_file(base + ".log");
  if (code == kSuccess) {
    const std::string library = read_file(base + ".so");
    const std::uint64_t size = library.size();
    program->binary = std::string(kMagic) +
                      std::string(reinterpret_cast<const char*>(&size), sizeof size) + library;
  }
  for (const char* suffix : {".cpp", ".so", ".log"}) std::filesystem::remove(base + suffix);
  return code;
}
Code nvrtcGetCUBINSize(ProgramHandle program, std::size_t* out) {
  *out = program->binary.size();
  return planned_failure(__func__);
}
Code nvrtcGetCUBIN(ProgramHandle program, char* out) {
  std::ranges::copy(program->binary, out);
  return planned_failure(__func__);
}
Code nvrtcGetProgramLogSize(ProgramHandle program, std::size_t* out) {
  *out = program->log.size() + 1;
  return kSuccess;
}
Code nvrtcGetProgramLog(ProgramHandle program, char* out) {
  std::memcpy(out, program->log.c_str(), program->log.size() + 1);
  return kSuccess;
}
Code nvrtcDestroyProgram(ProgramHandle* program) {
  delete std::exchange(*program, nullptr);
  return kSuccess;
}

#pragma GCC visibility pop

}  // extern "C"

}  // namespace backplane::cuda
