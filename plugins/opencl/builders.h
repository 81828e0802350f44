// Kernels built ahead, by processes beside this one. PoCL builds a kernel when it is launched for
// the first time, one at a time in a process, and keeps it on disk, where every process finds it.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::opencl {

// Goes before every program: a launch of one dimension builds a kernel and runs nothing of it. The
// plugin's own have three.
constexpr std::string_view kBeginText = "#define BP_BEGIN if (get_work_dim() == 1) return;\n";

// A program, and the kernels of it that are wanted. They begin with BP_BEGIN.
struct BuildRequest {
  std::string source;
  std::vector<std::string> entries;
};

// Processes are started when they are needed first, stay while there is work for them, and end by
// themselves.
class Builders {
 public:
  explicit Builders(std::uint32_t device) : device_(device) {}
  ~Builders();
  Builders(const Builders&) = delete;
  Builders& operator=(const Builders&) = delete;
  // A process for each, at the same time. Whether all are built: if not, the first launch builds
  // what is missing.
  bool build(std::string_view options, std::span<const BuildRequest> requests);
  // Whether one was started, which may have ended since.
  bool are_running();

 private:
  bool build_one(std::size_t builder, const std::string& text);

  std::uint32_t device_;
  std::mutex mutex_;          // held while they build
  std::vector<int> sockets_;  // -1: no process
};

}  // namespace backplane::opencl
