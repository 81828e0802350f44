// A tensor in memory at known sizes, and dense row-major copies of it in a compute domain.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/element.h"

namespace backplane::reference {

using Shape = std::vector<std::int64_t>;

// What a kernel throws; becomes the error of the work.
class KernelError : public std::runtime_error {
 public:
  KernelError(bp_code code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  explicit KernelError(const std::string& message) : KernelError(BP_INVALID_ARGUMENT, message) {}
  bp_code code() const { return code_; }

 private:
  bp_code code_;
};

std::int64_t product(const Shape& dims);
Shape dense_strides(const Shape& dims);
std::int64_t wrap_dim(std::int64_t dim, std::int64_t rank);

struct Tensor {
  Type type = Type::kNone;
  Shape dims, strides;        // strides in elements
  std::byte* data = nullptr;  // null where absent or empty
  std::uint64_t layout = 0;   // 0: strided; else an id of layouts.h, in memory order of its own

  std::int64_t rank() const { return static_cast<std::int64_t>(dims.size()); }
  std::int64_t elements() const { return product(dims); }
  std::int64_t size(std::int64_t dim) const { return dims[wrap_dim(dim, rank())]; }
  Tensor permuted(const Shape& order) const;
  Tensor moved_last(std::int64_t dim) const;  // a 0-d tensor becomes one of one element
  Tensor broadcast(const Shape& to) const;
  Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t length,
               std::int64_t step = 1) const;
  Tensor select(std::int64_t dim, std::int64_t index) const;
};

// Walks several tensors of the same dims together, row by row. With `reorder` the rows run along
// the first tensor's smallest stride, whatever dimension that is.
class Rows {
 public:
  static constexpr std::size_t kLimit = 8;
  Rows(const Shape& dims, std::span<const Shape* const> strides, bool reorder);
  bool more() const { return more_; }
  void next();
  std::int64_t length() const { return length_; }
  std::int64_t stride(std::size_t k) const { return inner_[k]; }
  std::int64_t offset(std::size_t k) const { return offsets_[k]; }  // elements

 private:
  std::size_t count_;
  std::int64_t length_ = 1;
  bool more_ = true;
  Shape outer_, at_;
  std::array<Shape, kLimit> strides_;
  std::array<std::int64_t, kLimit> inner_{}, offsets_{};
};

template <class T>
std::vector<T> load(const Tensor& from);
template <class T>
void store(const Tensor& to, const T* from);
template <class T>
void store(const Tensor& to, const std::vector<T>& from) {
  if (to.data != nullptr && static_cast<std::int64_t>(from.size()) != to.elements())
    throw KernelError(BP_INTERNAL, "result of another size than the graph says");
  store(to, from.data());
}
template <class T>
void fill(const Tensor& to, T value);
// Converts between element types; broadcasts `from`.
void copy(const Tensor& to, const Tensor& from);

#define BP_REFERENCE_TENSOR(T)                            \
  extern template std::vector<T> load<T>(const Tensor&);  \
  extern template void store<T>(const Tensor&, const T*); \
  extern template void fill<T>(const Tensor&, T);
BP_REFERENCE_TENSOR(double)
BP_REFERENCE_TENSOR(std::int64_t)
BP_REFERENCE_TENSOR(Complex)
#undef BP_REFERENCE_TENSOR

// What a type keeps of the elements: as a conversion before gives them.
template <class T>
std::vector<T> load_as(Type type, const Tensor& from) {
  if (from.type == type || from.elements() == 0) return load<T>(from);
  std::vector<std::byte> memory(static_cast<std::size_t>(from.elements() * bytes_of(type)));
  const Tensor as{type, from.dims, dense_strides(from.dims), memory.data()};
  copy(as, from);
  return load<T>(as);
}

// Calls f with a value of the domain that holds every given type exactly.
template <class F>
void in_domain(std::initializer_list<Type> types, F&& f) {
  bool complex = false, real = false;
  for (Type t : types) {
    complex = complex || is_complex(t);
    real = real || is_float(t);
  }
  if (complex) return f(Complex{});
  if (real) return f(double{});
  f(std::int64_t{});
}
// The same for kernels that need an order, which complex numbers have not.
template <class F>
void in_real_domain(Type type, F&& f) {
  if (is_integral(type)) return f(std::int64_t{});
  f(double{});
}

}  // namespace backplane::reference
