// Products of dims in a normal form, so that sizes and strides with dim classes can be compared.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/ir/graph.h"

namespace backplane::ir {

// coefficient * the product of the classes; 0 has no classes.
struct DimProduct {
  std::int64_t coefficient = 1;
  std::vector<std::uint32_t> classes;  // sorted, may repeat; none of them is itself a product
  friend bool operator==(const DimProduct&, const DimProduct&) = default;
};

// Reads a graph's classes once; a snapshot, stale when dim_classes change. Classes whose expression
// is a plain product ("4*s0*s1") are expanded, all others stand for themselves.
class DimAlgebra {
 public:
  explicit DimAlgebra(const Graph& graph);

  // The product of all dims; 1 for none. Null where the coefficient overflows.
  std::optional<DimProduct> product(std::span<const Dim> dims) const;
  std::optional<DimProduct> multiply(const DimProduct& a, const DimProduct& b) const;
  bool equal(Dim a, Dim b) const;
  // The number or the class that is this product.
  std::optional<Dim> find_dim(const DimProduct& product) const;
  // Row-major strides as products; constant sizes 0 and 1 count as 1, as in PyTorch.
  std::optional<std::vector<DimProduct>> row_major(std::span<const Dim> dims) const;
  // Null where a stride is no class of the graph.
  std::optional<std::vector<Dim>> row_major_dims(std::span<const Dim> dims) const;
  // Strides that say nothing (of size-1 dims) are ignored when `exact` is false.
  bool is_row_major(const TensorType& type, bool exact) const;

 private:
  std::vector<DimProduct> classes_;
};

}  // namespace backplane::ir
