#include "layouts.h"

#include <cstring>

namespace backplane::reference {
namespace {

constexpr std::int64_t kPanel = 8;

struct Matrix {
  std::int64_t rows, columns;
};
Matrix matrix_of(const Shape& dims) {
  if (dims.empty()) return {1, 1};
  std::int64_t columns = 1;
  for (std::size_t i = 1; i < dims.size(); ++i) columns *= dims[i];
  return {dims[0], columns};
}
std::int64_t round_up(std::int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

// Where element (r, c) lies, in elements.
std::int64_t place(std::uint64_t layout, const Matrix& m, std::int64_t r, std::int64_t c) {
  if (layout == kRowPanels) return r / kPanel * (m.columns * kPanel) + c * kPanel + r % kPanel;
  return c / kPanel * (m.rows * kPanel) + r * kPanel + c % kPanel;
}

}  // namespace

bool is_panel_layout(std::uint64_t layout) {
  return layout == kRowPanels || layout == kColumnPanels;
}

std::int64_t packed_bytes(std::uint64_t layout, Type type, const Shape& dims) {
  const Matrix m = matrix_of(dims);
  const std::int64_t elements =
      layout == kRowPanels ? round_up(m.rows) * m.columns : m.rows * round_up(m.columns);
  return elements * bytes_of(type);
}

template <class T>
void load_packed(const Tensor& from, T* to) {
  const Matrix m = matrix_of(from.dims);
  const std::int64_t size = bytes_of(from.type);
  // Rows of the matrix are runs with stride kPanel, or runs of kPanel columns.
  for (std::int64_t r = 0; r < m.rows; ++r) {
    if (from.layout == kRowPanels) {
      load_row(from.type, from.data + place(from.layout, m, r, 0) * size, kPanel, m.columns,
               to + r * m.columns);
      continue;
    }
    for (std::int64_t c = 0; c < m.columns; c += kPanel)
      load_row(from.type, from.data + place(from.layout, m, r, c) * size, 1,
               std::min(kPanel, m.columns - c), to + r * m.columns + c);
  }
}
template void load_packed<double>(const Tensor&, double*);
template void load_packed<std::int64_t>(const Tensor&, std::int64_t*);
template void load_packed<Complex>(const Tensor&, Complex*);

void convert_layout(const Tensor& to, const Tensor& from) {
  if (to.layout == 0) return copy(to, from);
  std::memset(to.data, 0, static_cast<std::size_t>(packed_bytes(to.layout, to.type, to.dims)));
  const Matrix m = matrix_of(to.dims);
  const std::int64_t size = bytes_of(to.type);
  in_domain({from.type}, [&]<class T>(T) {
    const std::vector<T> dense = load<T>(from);
    for (std::int64_t r = 0; r < m.rows; ++r)
      for (std::int64_t c = 0; c < m.columns; ++c)
        store_row(to.type, to.data + place(to.layout, m, r, c) * size, 1, 1,
                  dense.data() + r * m.columns + c);
  });
}

}  // namespace backplane::reference
