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
  // The device's library computes products: see Target::library_product.
  bool has_library_products = false;
  // Warps of 32 work-items multiply halves together, in the words of kernelgen::matrix_words.
  bool has_matrix_tiles = false;
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

// A product of matrices for a library of the device: results [batch, rows, columns], each a sum
// over `depth`. Of every matrix one stride is 1, in results that of columns; others are in
// elements, and no less than what they step over, but those of dims of size 1 and batch strides of
// 0.
struct ProductMatrix {
  kernelgen::Storage storage = kernelgen::Storage::kF32;
  std::int64_t batch_stride = 0, row_stride = 0, column_stride = 0;
};
struct ProductShape {
  std::int64_t batch = 1, rows = 1, columns = 1, depth = 1;
  ProductMatrix left, right, result;  // the factors of one storage
  bool has_bias = false;              // a row of the result's storage, added to each of the result
};
// What a library has prepared for products of one shape.
class LibraryProduct {
 public:
  virtual ~LibraryProduct() = default;
  virtual std::uint64_t workspace_bytes() const = 0;
};

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
  // Overwrites `result`, sums in float32. Only of what the target answered; `bias` is null where
  // the shape has none.
  virtual Status product(const LibraryProduct& /*product*/, const std::byte* /*left*/,
                         const std::byte* /*right*/, const std::byte* /*bias*/,
                         std::byte* /*result*/, std::byte* /*workspace*/,
                         const std::shared_ptr<const Work>& /*work*/) {
    return {BP_UNSUPPORTED, "no library"};
  }
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
  // Null: the library does not compute it, or there is none.
  virtual std::shared_ptr<const LibraryProduct> library_product(const ProductShape& /*shape*/) {
    return nullptr;
  }
  // What kernels of the nodes that `label` names write when they find an index out of range; not 0.
  virtual std::uint32_t fault_number(const std::string& label) = 0;

 private:
  Facts facts_;
};

}  // namespace backplane::kernels
