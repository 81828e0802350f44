// oneDNN: the engine, memory descriptors of our tensors, and a primitive ready to run.
#pragma once

#include "tensor.h"

#include <atomic>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>

namespace backplane::onednn {

const dnnl::engine& engine();

dnnl::memory::data_type dnnl_type(Type type);
inline dnnl::memory::data_type dnnl_type(bp_dtype dtype) { return dnnl_type(known_type(dtype)); }
// Strided; sizes as they are.
dnnl::memory::desc dnnl_desc(Type type, const Shape& dims, const Shape& strides);
inline dnnl::memory::desc dnnl_desc(const sdk::TensorSpec& spec) {
  return dnnl_desc(known_type(spec.dtype), spec.dims, spec.strides);
}
// Whether dnnl_desc can say where the elements lie: none repeats or overlaps another. What it
// cannot say is read through a dense copy. Dims of size 1 do not count.
bool is_describable(const Shape& dims, const Shape& strides);
inline bool is_describable(const sdk::TensorSpec& spec) {
  return is_describable(spec.dims, spec.strides);
}
inline dnnl::memory::desc any_desc(Type type, const Shape& dims) {
  return dnnl::memory::desc(dims, dnnl_type(type), dnnl::memory::format_tag::any);
}

// A primitive with its arguments. Memory objects are kept between runs and repointed; a second
// thread that comes at the same time makes its own.
class Runnable {
 public:
  struct Argument {
    int id;
    dnnl::memory::desc desc;
  };
  Runnable() = default;
  Runnable(dnnl::primitive primitive, std::vector<Argument> arguments);
  // One pointer per argument, in the order given.
  void run(std::span<void* const> pointers) const;
  explicit operator bool() const { return state_ != nullptr; }

 private:
  struct Set {
    std::vector<dnnl::memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  struct State {
    dnnl::primitive primitive;
    std::vector<Argument> arguments;
    Set kept;
    std::atomic_flag taken = ATOMIC_FLAG_INIT;
  };
  static Set make_set(const std::vector<Argument>& arguments);
  void run_with(Set& set, std::span<void* const> pointers) const;

  std::shared_ptr<State> state_;
};

// From one layout to another.
Runnable make_reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                      std::size_t* scratch_bytes);

inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

inline std::uint64_t aligned_bytes(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace backplane::onednn
