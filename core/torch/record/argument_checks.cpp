#include "core/torch/record/argument_checks.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace backplane::record {

namespace {

using Given = std::span<const c10::IValue>;

void check_gelu(Given in) {  // ..., approximate
  const std::string& approximate = in.back().toStringRef();
  TORCH_CHECK(approximate == "none" || approximate == "tanh",
              "approximate argument must be either none or tanh.");
}

void check_celu(Given in) {  // self, alpha
  TORCH_CHECK(in[1].toScalar().toDouble() != 0, "ZeroDivisionError: alpha cannot be 0 for CELU");
}

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
void check_convolution(Given in) {
  const auto check = [](const c10::IValue& list, std::int64_t least, const char* what) {
    for (const std::int64_t item : list.toIntVector()) TORCH_CHECK(item >= least, what);
  };
  check(in[3], 1, "non-positive stride is not supported");
  check(in[4], 0, "negative padding is not supported");
  check(in[5], 1, "dilation should be greater than zero");
  check(in[7], 0, "negative output_padding is not supported");
  TORCH_CHECK(in[8].toInt() > 0, "non-positive groups is not supported");
}

// input, weight, bias, N, C, HxW, groups, ...
void check_group_norm(Given in) {
  const at::Tensor& input = in[0].toTensor();
  const std::int64_t n = in[3].toInt(), channels = in[4].toInt(), image = in[5].toInt(),
                     groups = in[6].toInt();
  TORCH_CHECK(groups > 0 && channels % groups == 0, "Expected number of channels in input to be ",
              "divisible by num_groups, but got ", channels, " channels and num_groups=", groups);
  TORCH_CHECK(input.numel() == n * channels * image, "Expected input of sizes ", input.sizes(),
              " to have ", n, " x ", channels, " x ", image, " elements");
  for (const std::size_t i : {1, 2}) {
    if (!in[i].isTensor() || !in[i].toTensor().defined()) continue;
    TORCH_CHECK(in[i].toTensor().dim() == 1 && in[i].toTensor().numel() == channels,
                "Expected weight and bias to be vectors of ", channels, " elements, but got ",
                in[i].toTensor().sizes());
  }
}

void check_bucketize(Given in) {  // self, boundaries
  const at::Tensor& boundaries = in[1].toTensor();
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(",
              boundaries.dim(), ")");
}

void check_expands(const at::Tensor& self, at::IntArrayRef sizes) {
  TORCH_CHECK(at::is_expandable_to(self.sizes(), sizes), "The expanded size of the tensor ", sizes,
              " must match the existing size ", self.sizes());
}

void check_addr(Given in) {  // self, vec1, vec2, ...
  const at::Tensor &self = in[0].toTensor(), &rows = in[1].toTensor(), &columns = in[2].toTensor();
  TORCH_CHECK(rows.dim() == 1 && columns.dim() == 1, "addr: Expected 1-D argument vec1 and vec2");
  check_expands(self, {rows.numel(), columns.numel()});
}

void check_addmm(Given in) {  // self, mat1, mat2, ...
  const at::Tensor &self = in[0].toTensor(), &left = in[1].toTensor(), &right = in[2].toTensor();
  if (left.dim() == 2 && right.dim() == 2) check_expands(self, {left.size(0), right.size(1)});
}

void check_copy(Given in) {  // self, src
  const at::IntArrayRef self = in[0].toTensor().sizes(), source = in[1].toTensor().sizes();
  TORCH_CHECK(at::is_expandable_to(source, self), "output with shape ", self,
              " doesn't match the broadcast shape ", at::infer_size(self, source));
}

void check_masked_scatter(Given in) {  // self, mask, source
  const at::ScalarType mask = in[1].toTensor().scalar_type();
  TORCH_CHECK(mask == at::kBool,
              "masked_scatter_ only supports boolean masks, but got mask with dtype ", mask);
  TORCH_CHECK(in[0].toTensor().scalar_type() == in[2].toTensor().scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ",
              in[0].toTensor().scalar_type(), " and ", in[2].toTensor().scalar_type());
}

void check_masked_fill(Given in) {  // self, mask, value
  const at::ScalarType mask = in[1].toTensor().scalar_type();
  TORCH_CHECK(mask == at::kBool,
              "masked_fill_ only supports boolean masks, but got mask with dtype ", mask);
}

void check_complex(Given in) {  // real, imag
  const at::ScalarType real = in[0].toTensor().scalar_type();
  const at::ScalarType imaginary = in[1].toTensor().scalar_type();
  TORCH_CHECK(real == imaginary, "Expected object of scalar type ", real, " but got scalar type ",
              imaginary, " for second argument");
}

// The loss is made in memory of the target's size.
void check_logits(Given in) {  // self, target, ...
  const at::Tensor &self = in[0].toTensor(), &target = in[1].toTensor();
  TORCH_CHECK(at::is_expandable_to(self.sizes(), target.sizes()), "output with shape ",
              target.sizes(), " doesn't match the broadcast shape ",
              at::infer_size(self.sizes(), target.sizes()));
}

// The values of index_put fit what is indexed. How much masks choose is not known here.
void check_index_put(Given in) {  // self, indices, values, ...
  const at::Tensor &self = in[0].toTensor(), &values = in[2].toTensor();
  std::vector<std::int64_t> chosen, before, after;
  std::vector<std::size_t> places;
  const auto indices = in[1].toListRef();
  if (indices.size() > static_cast<std::size_t>(self.dim())) return;
  for (std::size_t d = 0; d < static_cast<std::size_t>(self.dim()); ++d) {
    if (d >= indices.size() || !indices[d].isTensor() || !indices[d].toTensor().defined()) {
      (places.empty() ? before : after).push_back(self.sizes()[d]);
      continue;
    }
    const at::Tensor& index = indices[d].toTensor();
    if (!at::isIntegralType(index.scalar_type(), /*includeBool=*/false)) return;
    if (!places.empty() && !at::is_expandable_to(index.sizes(), chosen) &&
        !at::is_expandable_to(chosen, index.sizes()))
      return;
    chosen = places.empty() ? index.sizes().vec() : at::infer_size(chosen, index.sizes());
    places.push_back(d);
  }
  if (places.empty()) return;
  const bool adjacent = places.back() - places.front() + 1 == places.size();
  std::vector<std::int64_t> result;
  if (adjacent) result = before;
  result.insert(result.end(), chosen.begin(), chosen.end());
  if (!adjacent) result.insert(result.end(), before.begin(), before.end());
  result.insert(result.end(), after.begin(), after.end());
  TORCH_CHECK(at::is_expandable_to(values.sizes(), result),
              "shape mismatch: value tensor of shape ", values.sizes(),
              " cannot be broadcast to indexing result of shape ", at::IntArrayRef(result));
}

void check_reduced_dim(Given in) {  // self, dim, ...
  const at::Tensor& self = in[0].toTensor();
  const std::int64_t dim = in[1].toInt();
  TORCH_CHECK_INDEX(self.dim() == 0 || self.size(dim) != 0, "Expected reduction dim ", dim,
                    " to have non-zero size.");
}

// Of the last element that sizes and strides show, counted from the first; -1 where there is none.
std::int64_t last_element(at::IntArrayRef sizes, at::IntArrayRef strides) {
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  std::int64_t last = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return -1;
    last += (sizes[d] - 1) * strides[d];
  }
  return last;
}

void check_as_strided(Given in) {  // self, size, stride, storage_offset
  const at::Tensor& self = in[0].toTensor();
  const auto sizes = in[1].toIntVector(), strides = in[2].toIntVector();
  const std::int64_t first = in[3].isNone() ? self.storage_offset() : in[3].toInt();
  const std::int64_t last = last_element(sizes, strides);
  const auto bytes = static_cast<std::int64_t>(self.storage().nbytes());
  TORCH_CHECK(last < 0 || (first + last + 1) * static_cast<std::int64_t>(self.itemsize()) <= bytes,
              "setStorage: sizes ", at::IntArrayRef(sizes), ", strides ", at::IntArrayRef(strides),
              ", storage offset ", first, " are out of bounds for storage of size ", bytes);
}

// self, src, size, stride, storage_offset
void check_as_strided_scatter(Given in) {
  const at::Tensor& self = in[0].toTensor();
  const auto sizes = in[2].toIntVector(), strides = in[3].toIntVector();
  const std::int64_t first = in[4].isNone() ? 0 : in[4].toInt() - self.storage_offset();
  const std::int64_t last = last_element(sizes, strides);
  TORCH_CHECK(last < 0 || first + last <= last_element(self.sizes(), self.strides()),
              "as_strided_scatter: sizes ", at::IntArrayRef(sizes), " and strides ",
              at::IntArrayRef(strides), " lead out of a tensor of sizes ", self.sizes(),
              " and strides ", self.strides());
}

}  // namespace

ArgumentCheck find_argument_check(std::string_view name) {
  static const auto& table = *new std::unordered_map<std::string_view, ArgumentCheck>{
      {"aten.celu", check_celu},
      {"aten.gelu", check_gelu},
      {"aten.gelu_backward", check_gelu},
      {"aten.convolution", check_convolution},
      {"aten.native_group_norm", check_group_norm},
      {"aten.bucketize.Tensor", check_bucketize},
      {"aten.addr", check_addr},
      {"aten.addmm", check_addmm},
      {"aten.copy", check_copy},
      {"aten.masked_scatter", check_masked_scatter},
      {"aten.masked_fill.Scalar", check_masked_fill},
      {"aten.masked_fill.Tensor", check_masked_fill},
      {"aten.complex", check_complex},
      {"aten.index_put", check_index_put},
      {"aten._index_put_impl", check_index_put},
      {"aten._unsafe_index_put", check_index_put},
      {"aten.binary_cross_entropy_with_logits", check_logits},
      {"aten.max.dim", check_reduced_dim},
      {"aten.min.dim", check_reduced_dim},
      {"aten.median.dim", check_reduced_dim},
      {"aten.nanmedian.dim", check_reduced_dim},
      {"aten.mode", check_reduced_dim},
      {"aten.as_strided", check_as_strided},
      {"aten.as_strided_copy", check_as_strided},
      {"aten.as_strided_scatter", check_as_strided_scatter},
  };
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace backplane::record
