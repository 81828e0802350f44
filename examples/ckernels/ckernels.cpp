// A device whose kernel language is C: the kernels of backplane/kernels, built by the system's
// compiler and run in the host's memory. What a vendor with a C-like language writes is a Target,
// a Launcher and the device around them.
#include <backplane/kernels/program.hpp>
#include <backplane/sdk.hpp>

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <unordered_map>

namespace ckernels {

namespace bp = backplane::sdk;
namespace gen = backplane::kernels;
using bp::Result;
using bp::Status;

// One kernel: after it is built, a function that runs it for all items.
struct Program final : gen::Program {
  using Run = void (*)(const std::size_t* items, const std::uint64_t* arguments);
  std::string text, entry, label;
  Run run = nullptr;
};

// A kernel computes one item; this calls it for each. Arguments come as 64 bits each.
std::string print_loop(const Program& program) {
  const std::size_t begin = program.text.find("(BP_ITEM ") + 9;
  std::string parameters = program.text.substr(begin, program.text.find(')', begin) - begin), call;
  for (std::size_t i = 0, from = 0; from != std::string::npos; ++i) {
    const std::size_t comma = parameters.find(',', from);
    const bool pointer = parameters.substr(from, comma - from).find('*') != std::string::npos;
    call += std::string(pointer ? ", (uchar*)" : ", ") + "a[" + std::to_string(i) + "]";
    from = comma == std::string::npos ? comma : comma + 1;
  }
  return "void " + program.entry + "_run(const size_t* n, const ulong* a) {\n  size_t i[3];\n" +
         "  for (i[2] = 0; i[2] < n[2]; ++i[2])\n    for (i[1] = 0; i[1] < n[1]; ++i[1])\n" +
         "      for (i[0] = 0; i[0] < n[0]; ++i[0]) " + program.entry + "(i" + call + ");\n}\n";
}

class Target final : public gen::Target {
 public:
  Target() : gen::Target({.dialect = backplane::kernelgen::Dialect::kC11, .lanes = 1}) {}

  std::shared_ptr<const gen::Program> program(const std::string& text, const std::string& entry,
                                              const std::string& label) override {
    const std::lock_guard lock(mutex_);
    auto& known = programs_[text];
    if (known == nullptr) {
      known = std::make_shared<Program>();
      known->text = text;
      known->entry = entry;
      known->label = label;
      pending_.push_back(known);
    }
    return known;
  }

  Status build_pending() override {
    const std::lock_guard lock(mutex_);
    if (pending_.empty()) return {};
    const auto folder = std::filesystem::temp_directory_path() /
                        ("ckernels-" + std::to_string(::getpid()) + "-" + std::to_string(built_++));
    std::filesystem::create_directories(folder);
    std::ofstream source(folder / "kernels.c");
    source << backplane::kernelgen::print_library(facts().dialect, facts().lanes);
    for (const auto& program : pending_) source << program->text << print_loop(*program);
    source.close();
    const std::string base = folder / "kernels";
    // Integers wrap around as PyTorch's do; products and sums are rounded one by one.
    const std::string command =
        "cc -std=c11 -D_GNU_SOURCE -O1 -w -fwrapv -ffp-contract=off"
        " -shared -fPIC -o " +
        base + ".so " + base + ".c -lm";
    void* library = nullptr;  // not std::system, which changes signal handlers
    if (FILE* compiler = ::popen(command.c_str(), "r"); compiler != nullptr)
      if (::pclose(compiler) == 0)
        library = ::dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      return {BP_INTERNAL,
              "the kernels of " + pending_[0]->label + " do not build: " + base + ".c"};
    for (const auto& program : pending_)
      program->run =
          reinterpret_cast<Program::Run>(::dlsym(library, (program->entry + "_run").c_str()));
    std::filesystem::remove_all(folder);
    pending_.clear();
    return {};
  }

  Result<std::shared_ptr<std::byte>> constant(const void* data, std::uint64_t bytes) override {
    const std::shared_ptr<std::byte> copy(new std::byte[bytes + 1],
                                          std::default_delete<std::byte[]>());
    std::memcpy(copy.get(), data, bytes);
    return copy;
  }

  std::uint32_t fault_number(const std::string& label) override {
    const std::lock_guard lock(mutex_);
    labels_.push_back(label);
    return static_cast<std::uint32_t>(labels_.size());
  }
  Status fault(std::uint32_t number) {
    if (number == 0) return {};
    const std::lock_guard lock(mutex_);
    return {BP_INVALID_ARGUMENT, labels_[number - 1] + ": an index is out of range"};
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Program>> programs_;  // by text
  std::vector<std::shared_ptr<Program>> pending_;
  std::vector<std::string> labels_;
  int built_ = 0;
};

// Kernels run as they are launched.
class Launcher final : public gen::Launcher {
 public:
  Status launch(const gen::Program& program, std::span<const gen::Bound> arguments,
                const gen::Extent& items, const gen::Extent&,
                const std::shared_ptr<const gen::Work>&) override {
    std::vector<std::uint64_t> bits;
    for (const gen::Bound& a : arguments) {
      bits.push_back(a.is_memory ? reinterpret_cast<std::uintptr_t>(a.address) : a.bits);
      if (a.is_memory) bits.push_back(0);  // the offset from it
    }
    static_cast<const Program&>(program).run(items.data(), bits.data());
    return {};
  }
  Status fill_zero(std::byte* address, std::uint64_t bytes,
                   const std::shared_ptr<const gen::Work>&) override {
    std::memset(address, 0, bytes);
    return {};
  }
  Result<std::byte*> fault_word(const std::shared_ptr<const gen::Work>&) override {
    return reinterpret_cast<std::byte*>(&fault_);
  }
  std::uint32_t found() const { return fault_; }

 private:
  std::uint32_t fault_ = 0;
};

class Executable final : public gen::GeneratedProgram {
 public:
  Executable(const std::shared_ptr<Target>& target, const bp::Subgraph& graph,
             const bp::CompileOptions& options)
      : GeneratedProgram(target, graph, options), target_(target) {
    flags = BP_EXECUTABLE_SYNCHRONOUS;
  }
  Status execute(const bp::Execution& call) override {
    if (Status built = prepare(call); !built.ok()) return built;
    Launcher launcher;
    Status status = run(call, &launcher);
    return status.ok() ? target_->fault(launcher.found()) : status;
  }

 private:
  std::shared_ptr<Target> target_;
};

class Device final : public bp::Device {
 public:
  bp::DeviceInfo info() const override { return {.name = "C kernels"}; }
  Result<bp::Buffer> allocate(std::size_t bytes) override { return bp::host_buffer(bytes); }
  Status copy(const bp::Copy& copy, const bp::Order&) override {
    if (copy.bytes() != 0) std::memmove(copy.target.data(), copy.source.data(), copy.bytes());
    return {};
  }
  bp::Claims claims(const bp::GraphView& graph) override {
    return gen::claims(target_->facts(), graph);
  }
  Result<std::unique_ptr<bp::Executable>> compile(const bp::Subgraph& graph,
                                                  const bp::CompileOptions& options) override {
    if (Status no = Executable::check(target_->facts(), graph, options); !no.ok()) return no;
    return std::unique_ptr<bp::Executable>(new Executable(target_, graph, options));
  }

 private:
  std::shared_ptr<Target> target_ = std::make_shared<Target>();
};

}  // namespace ckernels

BP_PLUGIN("ckernels", "Backplane examples", "0.1.0", ckernels::Device)
