#include "kernels/tensor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "layouts.h"

namespace backplane::reference {

std::int64_t product(const Shape& dims) {
  std::int64_t n = 1;
  for (std::int64_t d : dims) n *= d;
  return n;
}
Shape dense_strides(const Shape& dims) {
  Shape strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::int64_t>(dims[i], 1);
  return strides;
}
std::int64_t wrap_dim(std::int64_t dim, std::int64_t rank) {
  const std::int64_t limit = std::max<std::int64_t>(rank, 1);
  if (dim < -limit || dim >= limit) throw KernelError("dimension out of range");
  return dim < 0 ? dim + limit : dim;
}

Tensor Tensor::permuted(const Shape& order) const {
  Tensor out = *this;
  for (std::size_t i = 0; i < order.size(); ++i) {
    out.dims[i] = dims[order[i]];
    out.strides[i] = strides[order[i]];
  }
  return out;
}
Tensor Tensor::moved_last(std::int64_t dim) const {
  Tensor out = *this;
  if (dims.empty()) {
    out.dims = {1};
    out.strides = {1};
    return out;
  }
  const std::int64_t d = wrap_dim(dim, rank());
  std::rotate(out.dims.begin() + d, out.dims.begin() + d + 1, out.dims.end());
  std::rotate(out.strides.begin() + d, out.strides.begin() + d + 1, out.strides.end());
  return out;
}
Tensor Tensor::broadcast(const Shape& to) const {
  Tensor out = *this;
  out.dims = to;
  out.strides.assign(to.size(), 0);
  if (dims.size() > to.size()) throw KernelError("operand of higher rank than the result");
  const std::size_t lead = to.size() - dims.size();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == to[lead + i])
      out.strides[lead + i] = strides[i];
    else if (dims[i] != 1)
      throw KernelError("operand does not broadcast to the result");
  }
  return out;
}
Tensor Tensor::slice(std::int64_t dim, std::int64_t start, std::int64_t length,
                     std::int64_t step) const {
  Tensor out = *this;
  const std::int64_t d = wrap_dim(dim, rank());
  if (out.data) out.data += start * strides[d] * bytes_of(type);
  out.dims[d] = length;
  out.strides[d] = strides[d] * step;
  return out;
}
Tensor Tensor::select(std::int64_t dim, std::int64_t index) const {
  const std::int64_t d = wrap_dim(dim, rank());
  Tensor out = slice(d, index, 1);
  out.dims.erase(out.dims.begin() + d);
  out.strides.erase(out.strides.begin() + d);
  return out;
}

Rows::Rows(const Shape& dims, std::span<const Shape* const> strides, bool reorder)
    : count_(strides.size()) {
  std::vector<std::size_t> order(dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (reorder) {
    const Shape& lead = *strides[0];
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return lead[a] > lead[b]; });
  }
  // From the innermost dimension outwards: join what is one run in every tensor.
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t d = order[i];
    if (dims[d] == 0) more_ = false;
    if (dims[d] == 1) continue;
    const bool first = outer_.empty();
    bool joins = !first;
    for (std::size_t k = 0; joins && k < count_; ++k)
      joins = (*strides[k])[d] == strides_[k].back() * outer_.back();
    if (joins) {
      outer_.back() *= dims[d];
      continue;
    }
    outer_.push_back(dims[d]);
    for (std::size_t k = 0; k < count_; ++k) strides_[k].push_back((*strides[k])[d]);
  }
  if (!outer_.empty()) {
    length_ = outer_.front();
    outer_.erase(outer_.begin());
    for (std::size_t k = 0; k < count_; ++k) {
      inner_[k] = strides_[k].front();
      strides_[k].erase(strides_[k].begin());
    }
  } else {
    inner_.fill(1);
  }
  at_.assign(outer_.size(), 0);
}

void Rows::next() {
  for (std::size_t d = 0; d < outer_.size(); ++d) {  // innermost first
    for (std::size_t k = 0; k < count_; ++k) offsets_[k] += strides_[k][d];
    if (++at_[d] < outer_[d]) return;
    for (std::size_t k = 0; k < count_; ++k) offsets_[k] -= strides_[k][d] * outer_[d];
    at_[d] = 0;
  }
  more_ = false;
}

template <class T>
std::vector<T> load(const Tensor& from) {
  std::vector<T> to(static_cast<std::size_t>(from.elements()));
  if (to.empty() || from.data == nullptr) return to;
  if (from.layout != 0) {
    load_packed(from, to.data());
    return to;
  }
  const Shape* strides[] = {&from.strides};
  const std::int64_t size = bytes_of(from.type);
  T* at = to.data();
  for (Rows rows(from.dims, strides, false); rows.more(); rows.next()) {
    load_row(from.type, from.data + rows.offset(0) * size, rows.stride(0), rows.length(), at);
    at += rows.length();
  }
  return to;
}

template <class T>
void store(const Tensor& to, const T* from) {
  if (to.data == nullptr || to.elements() == 0) return;
  const Shape* strides[] = {&to.strides};
  const std::int64_t size = bytes_of(to.type);
  for (Rows rows(to.dims, strides, false); rows.more(); rows.next()) {
    store_row(to.type, to.data + rows.offset(0) * size, rows.stride(0), rows.length(), from);
    from += rows.length();
  }
}

namespace {
constexpr std::int64_t kBlock = 512;
}

template <class T>
void fill(const Tensor& to, T value) {
  if (to.data == nullptr || to.elements() == 0) return;
  T block[kBlock];
  std::fill(std::begin(block), std::end(block), value);
  const Shape* strides[] = {&to.strides};
  const std::int64_t size = bytes_of(to.type);
  for (Rows rows(to.dims, strides, true); rows.more(); rows.next())
    for (std::int64_t i = 0; i < rows.length(); i += kBlock)
      store_row(to.type, to.data + (rows.offset(0) + i * rows.stride(0)) * size, rows.stride(0),
                std::min(kBlock, rows.length() - i), block);
}

void copy(const Tensor& to, const Tensor& source) {
  if (to.data == nullptr || to.elements() == 0) return;
  if (source.layout != 0) {
    in_domain({source.type}, [&]<class T>(T) { store(to, load<T>(source)); });
    return;
  }
  const Tensor from = source.broadcast(to.dims);
  const Shape* strides[] = {&to.strides, &from.strides};
  const std::int64_t to_size = bytes_of(to.type), from_size = bytes_of(from.type);
  // The domain of the source: a conversion rounds once, where it is stored.
  in_domain({from.type}, [&]<class T>(T) {
    T block[kBlock];
    for (Rows rows(to.dims, strides, true); rows.more(); rows.next()) {
      std::byte* target = to.data + rows.offset(0) * to_size;
      const std::byte* origin = from.data + rows.offset(1) * from_size;
      if (to.type == from.type && rows.stride(0) == 1 && rows.stride(1) == 1) {
        std::memcpy(target, origin, static_cast<std::size_t>(rows.length() * to_size));
        continue;
      }
      for (std::int64_t i = 0; i < rows.length(); i += kBlock) {
        const std::int64_t n = std::min(kBlock, rows.length() - i);
        load_row(from.type, origin + i * rows.stride(1) * from_size, rows.stride(1), n, block);
        store_row(to.type, target + i * rows.stride(0) * to_size, rows.stride(0), n, block);
      }
    }
  });
}

#define BP_REFERENCE_TENSOR(T)                     \
  template std::vector<T> load<T>(const Tensor&);  \
  template void store<T>(const Tensor&, const T*); \
  template void fill<T>(const Tensor&, T);
BP_REFERENCE_TENSOR(double)
BP_REFERENCE_TENSOR(std::int64_t)
BP_REFERENCE_TENSOR(Complex)
#undef BP_REFERENCE_TENSOR

}  // namespace backplane::reference
