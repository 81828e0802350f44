// What a device brings for generated kernels: how texts become programs, where constants lie, and
// how the launches of a call are queued. Whoever has a C-like kernel language implements this and
// gets the operators of `kernels`.
#pragma once

#include <backplane/kernelgen/kernel.hpp>
#include <backplane/sdk/step.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace backplane::kernels {

using sdk::Result;
using sdk::Status;

// What the texts of kernels are shaped by.
struct Facts {
  kernelgen::Dialect dialect = kernelgen::Dialect::kOpenCL;
  // Many small work-items, in groups; else few, each of which computes a run of elements.
  bool gpu = false;
  // Of vectors in texts for few work-items: 16, or 1 for scalar code. Only OpenCL has vectors.
  std::int64_t lanes = 16;
  bool has_fp64 = true;
  std::size_t group_limit = 256;   // work-items of a group
  std::uint64_t stream_bytes = 0;  // results of so many do not stay in a CPU's caches; 0: no CPU
  // Vectors of 16 floats that a CPU's registers hold as sums of a product, beside its factors.
  std::int64_t product_sums = 24;

  bool has_vectors() const { return !gpu && lanes > 1; }
};

// What a launch or a copy is for.
struct Work {
  std::string name;
  std::vector<std::uint32_t> nodes;  // ids
};

// One kernel of the device, built or to be built.
class Program {
 public:
  virtual ~Program() = default;
};

// An argument of a launch. Memory is two parameters of the kernel: a base, and 64 bits that are an
// offset in bytes. The device may split an address as it likes.
struct Bound {
  std::byte* address = nullptr;
  std::uint64_t bits = 0;  // a number, where it is no memory
  bool is_memory = false;
};
using Extent = std::array<std::size_t, 3>;

// Where the launches of one call go, in order. Lives as long as the call.
class Launcher : public sdk::CallContext {
 public:
  virtual ~Launcher() = default;
  // `items` is a multiple of `group` in each dim.
  virtual Status launch(const Program& program, std::span<const Bound> arguments,
                        const Extent& items, const Extent& group,
                        const std::shared_ptr<const Work>& work) = 0;
  virtual Status fill_zero(std::byte* address, std::uint64_t bytes,
                           const std::shared_ptr<const Work>& work) = 0;
  // A word of 32 bits on the device, zero when the call begins. A kernel that meets an index out
  // of range writes its fault number there; the call fails when its work is done.
  virtual Result<std::byte*> fault_word(const std::shared_ptr<const Work>& work) = 0;
};

class Target {
 public:
  explicit Target(Facts facts) : facts_(facts) {}
  virtual ~Target() = default;
  const Facts& facts() const { return facts_; }

  // The kernel `entry` of `text`; known already, or to be built by the next build_pending.
  // kernelgen::print_library goes before the text. `label` names the nodes in messages.
  virtual std::shared_ptr<const Program> program(const std::string& text, const std::string& entry,
                                                 const std::string& label) = 0;
  virtual Status build_pending() = 0;
  // A copy on the device, for as long as the answer lives.
  virtual Result<std::shared_ptr<std::byte>> constant(const void* data, std::uint64_t bytes) = 0;
  // What kernels of the nodes that `label` names write when they find an index out of range; not 0.
  virtual std::uint32_t fault_number(const std::string& label) = 0;

 private:
  Facts facts_;
};

}  // namespace backplane::kernels
