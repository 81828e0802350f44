// A kernel: axes, tensors and stores of expressions; and its printed form.
//
//   outer axes   every point is computed independently
//   loop axes    reductions run over all of them; stores may run over them too ("rows")
//
// A CPU schedule gives one work-item a tile of rows and computes in vectors; a GPU schedule gives
// one work-item a point, or one work-group a row.
#pragma once

#include <backplane/kernelgen/expression.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::kernelgen {

struct Store {
  std::size_t tensor;
  Storage storage;
  Expr offset;  // in elements
  Expr value;   // converted to the storage
  // Over loop axes: one point after the other, because several may write one element; the outer
  // axes must then keep their elements apart. kAdd adds to what is there.
  // kNonZero: an integer, stored where it is not 0; of several at one element, any may stay.
  enum Mode : std::uint8_t { kPlain, kOrdered, kAdd, kNonZero } mode = kPlain;
};

// Arguments, in this order: per tensor its base and an offset in bytes, then per value 64 bits.
struct Kernel {
  std::size_t outer_count = 0;  // of the expressions' axes; the rest are loop axes
  Expressions expressions;
  std::vector<Storage> tensors;  // stored ones included
  std::vector<Storage> values;
  std::vector<Store> stores;
  // Each point of axis 0 takes a part of the loop axes' points: see split.hpp.
  bool sliced = false;
};

enum class Dialect : std::uint8_t { kOpenCL, kCuda, kC11 };

struct Schedule {
  bool gpu = false;
  std::int64_t lanes = 16;        // of vectors in a CPU schedule; 1: scalar code
  std::int64_t grain = 16384;     // element operations of a work-item in a CPU schedule
  std::int64_t group_size = 256;  // work-items of a group in a GPU schedule
  // Results of so many bytes are written past the caches in a CPU schedule; 0: none.
  std::int64_t stream_bytes = 0;
  bool unroll = true;  // short rows have no loops: faster, and another text for each length
};

struct Printed {
  std::string text;         // one kernel, deterministic: equal kernels print equal text
  std::string entry;        // its name, made of the text's hash
  std::uint64_t items = 0;  // work-items to launch; 0: nothing to do
  std::uint64_t group = 1;  // work-items of a group; items is a multiple
};

Printed print(const Kernel& kernel, Dialect dialect, const Schedule& schedule);

// What kernels' texts rely on: types, memory access, mathematical functions, and for texts written
// by hand the words of the dialect: BP_ITEM before the parameters (in C a kernel gets the item that
// it computes, `const size_t* bp_item` of three), BP_ID(d), BP_GROUP_ID, BP_LOCAL_ID and
// BP_LOCAL_SIZE of dim 0, BP_GLOBAL, BP_LOCAL, BP_RESTRICT, BP_BARRIER, BP_MIN, BP_MAX. It goes
// before them; any number of texts may follow it in one program. Kernels begin with the macro
// BP_BEGIN, which is empty unless it is defined before.
std::string print_library(Dialect dialect, std::int64_t lanes);
// CUDA C for devices of compute capability 8.0 and later: products of matrices by the threads of a
// warp, copies to shared memory that run beside them. Goes before each text that uses it, any
// number of times; kernels whose functions wait for other threads say BP_COLLECTIVE.
std::string_view matrix_words();
// The text with its entry named after its hash. `text` says "BP_ENTRY" for the name.
Printed name_entry(std::string text);

// Statements for the middle of another kernel's text (epilogues of products): computes the kernel's
// stores at one point. Axes are variables a0, a1, …; externals x0, x1, …; tensors t0, t1, ….
struct Fragment {
  std::string wide;    // along `lane_axis`, `lanes` points; externals are vectors
  std::string narrow;  // one point
};
Fragment print_fragment(const Kernel& kernel, Dialect dialect, std::size_t lane_axis,
                        std::int64_t lanes);
// Parameters and the declarations of t0, t1, … and values, as print writes them.
std::string print_parameters(const Kernel& kernel);
std::string print_declarations(const Kernel& kernel);
std::uint64_t hash_text(const std::string& text);

// For texts written by hand: the type of elements in memory, and one element of `tensor`, a pointer
// to them, as a number of the storage's compute type.
std::string_view element_type(Storage storage);
std::string element_load(Storage storage, const std::string& tensor, const std::string& at);
std::string element_store(Storage storage, const std::string& tensor, const std::string& at,
                          const std::string& value);

}  // namespace backplane::kernelgen
