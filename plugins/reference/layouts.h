// The opaque layouts of weights: panels of eight rows or columns, padded with zeros, so that an
// inner product kernel reads eight outputs' weights side by side.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace backplane::reference {

// Matrices are [rows, columns]; dimensions after the first count as columns together.
inline constexpr std::uint64_t kRowPanels = 0x5245'4650'414e'0001;     // panels of eight rows
inline constexpr std::uint64_t kColumnPanels = 0x5245'4650'414e'0002;  // panels of eight columns

bool is_panel_layout(std::uint64_t layout);
// Bytes of a tensor of these dims in the layout.
std::int64_t packed_bytes(std::uint64_t layout, Type type, const Shape& dims);
// Row-major from packed.
template <class T>
void load_packed(const Tensor& from, T* to);
// Between strided, packed and otherwise packed tensors of equal type and dims.
void convert_layout(const Tensor& to, const Tensor& from);

extern template void load_packed<double>(const Tensor&, double*);
extern template void load_packed<std::int64_t>(const Tensor&, std::int64_t*);
extern template void load_packed<Complex>(const Tensor&, Complex*);

}  // namespace backplane::reference
