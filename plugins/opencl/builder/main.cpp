// backplane-opencl-build DEVICE: builds kernels into the driver's own cache (builders.h). Requests
// come through the socket that is its standard input: eight bytes of size, the build options, the
// names of kernels, each in a line; an empty line; the source. It answers '1' or '0'. It ends when
// the other end does, at work or not, or has been silent for a while.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "facts.h"

namespace backplane::opencl {
namespace {

constexpr int kPatienceMilliseconds = 20000;

bool read_all(char* data, std::size_t bytes) {
  while (bytes != 0) {
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    if (poll(&waiting, 1, kPatienceMilliseconds) <= 0) return false;
    const ssize_t done = read(STDIN_FILENO, data, bytes);
    if (done <= 0) return false;
    data += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

// What a launch needs to be accepted; nothing is read.
bool set_arguments(cl_kernel kernel) {
  cl_uint count = 0;
  if (clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof count, &count, nullptr) != CL_SUCCESS)
    return false;
  constexpr std::array<std::size_t, 4> kSizes = {8, 4, 2, 1};
  const std::array<std::byte, 8> zeros{};
  for (cl_uint i = 0; i < count; ++i) {
    bool is_set = clSetKernelArg(kernel, i, sizeof(cl_mem), nullptr) == CL_SUCCESS;
    for (const std::size_t bytes : kSizes)
      is_set = is_set || clSetKernelArg(kernel, i, bytes, zeros.data()) == CL_SUCCESS;
    if (!is_set) return false;
  }
  return true;
}

// As the plugin will launch it, in groups of one work-item, but in one dimension.
bool build_kernel(cl_command_queue queue, cl_program program, const std::string& entry) {
  cl_int code = CL_SUCCESS;
  cl_kernel kernel = clCreateKernel(program, entry.c_str(), &code);
  if (code != CL_SUCCESS) return false;
  const std::size_t one = 1;
  const bool built = set_arguments(kernel) &&
                     clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, &one, &one, 0, nullptr,
                                            nullptr) == CL_SUCCESS &&
                     clFinish(queue) == CL_SUCCESS;
  clReleaseKernel(kernel);
  return built;
}

class Builder {
 public:
  bool open(const std::string& number) {
    for (const DeviceFacts& facts : find_devices())
      if (std::to_string(facts.index) == number) device_ = facts.device;
    if (device_ == nullptr) return false;
    cl_int code = CL_SUCCESS;
    context_ = clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &code);
    if (code != CL_SUCCESS) return false;
    queue_ = clCreateCommandQueue(context_, device_, 0, &code);
    return code == CL_SUCCESS;
  }

  bool build(std::string_view text) const {
    const std::string options = take_line(text);
    std::vector<std::string> entries;
    for (std::string line = take_line(text); !line.empty(); line = take_line(text))
      entries.push_back(std::move(line));
    const char* source = text.data();
    const std::size_t size = text.size();
    cl_int code = CL_SUCCESS;
    cl_program program = clCreateProgramWithSource(context_, 1, &source, &size, &code);
    if (code != CL_SUCCESS) return false;
    bool built =
        clBuildProgram(program, 1, &device_, options.c_str(), nullptr, nullptr) == CL_SUCCESS;
    if (built)
      for (const std::string& entry : entries)
        built = build_kernel(queue_, program, entry) && built;
    clReleaseProgram(program);
    return built;
  }

 private:
  static std::string take_line(std::string_view& text) {
    const std::size_t end = text.find('\n');
    std::string line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return line;
  }

  cl_device_id device_ = nullptr;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
};

// A driver can take minutes for a kernel that nobody waits for any more.
void end_with_the_other_end() {
  pollfd waiting{STDIN_FILENO, 0, 0};  // nothing but the end is waited for
  while (poll(&waiting, 1, -1) <= 0) continue;
  std::_Exit(0);
}

void serve(const std::string& device) {
  Builder builder;
  if (!builder.open(device)) return;
  std::uint64_t size = 0;
  while (read_all(reinterpret_cast<char*>(&size), sizeof size)) {
    std::string text(size, 0);
    if (!read_all(text.data(), size)) return;
    const char answer = builder.build(text) ? '1' : '0';
    if (write(STDIN_FILENO, &answer, 1) != 1) return;
  }
}

}  // namespace
}  // namespace backplane::opencl

int main(int count, char** arguments) {
  // The process that started this one has a child that ends at once.
  if (count != 2 || fork() != 0) std::_Exit(count != 2);
  try {
    std::thread(backplane::opencl::end_with_the_other_end).detach();
    backplane::opencl::serve(arguments[1]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "backplane-opencl-build: %s\n", e.what());
  }
  std::_Exit(0);  // the driver's threads are not waited for
}
