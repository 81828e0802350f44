// Reads through indices: embedding, gather, index_select, index.
#include <backplane/sdk/indexing.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/kernel_registry.h"
#include "kernels/movement/index_values.h"
#include "kernels/movement/strided_copy.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;
using sdk::TensorSpec;

// A kernel whose indices may lie outside of what they index: that is an error of the call.
template <class F>
class IndexKernel : public sdk::Kernel {
 public:
  explicit IndexKernel(F body) : body_(std::move(body)) {}
  sdk::Status run(const KernelCall& call) const override {
    if (body_(call)) return {};
    return sdk::Status(BP_INVALID_ARGUMENT, "an index is out of range");
  }

 private:
  F body_;
};
template <class F>
MadeKernel make_index_kernel(F body) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<IndexKernel<F>>(std::move(body)));
}

// Rows `at[i]` of a table along one dim: out[.., i.., ..] = source[.., at[i], ..].
struct RowGather {
  TensorSpec source, index, out;
  std::size_t dim;

  bool operator()(const std::byte* from, const std::byte* indices, std::byte* to) const {
    const std::int64_t size = sdk::element_bytes(source.dtype), limit = source.dims[dim];
    const Type index_type = known_type(index.dtype);
    const std::size_t index_rank = index.rank();
    // Dims before, then those of the index, then those after.
    Shape slice_dims, slice_from, slice_to;
    for (std::size_t d = 0; d < source.rank(); ++d) {
      if (d == dim) continue;
      slice_dims.push_back(source.dims[d]);
      slice_from.push_back(source.strides[d]);
      slice_to.push_back(out.strides[d < dim ? d : d - 1 + index_rank]);
    }
    const Shape index_to(out.strides.begin() + static_cast<std::ptrdiff_t>(dim),
                         out.strides.begin() + static_cast<std::ptrdiff_t>(dim + index_rank));
    Walk walk(index.dims, {index.strides, index_to});
    const StridedCopy slice(slice_dims, slice_to, slice_from, size);
    Walk flat(slice_dims, {slice_to, slice_from});
    flat.merge();
    const std::int64_t bytes =
        flat.dims.empty() ||
                (flat.dims.size() == 1 && flat.strides[0][0] == 1 && flat.strides[1][0] == 1)
            ? product(slice_dims) * size
            : -1;
    std::atomic<bool> ok = true;
    const std::int64_t inner = walk.inner();
    const auto rows = [&](int, std::int64_t begin, std::int64_t end) {
      RowCursor<2> at(walk, begin);
      for (std::int64_t r = begin; r < end; ++r, at.next())
        for (std::int64_t i = 0; i < inner; ++i) {
          const std::int64_t v =
              read_index(index_type, indices + (at.offset(0) + i * walk.inner_stride(0)) *
                                                   bytes_of(index_type));
          if (v < 0 || v >= limit) {
            ok = false;
            continue;
          }
          std::byte* target = to + (at.offset(1) + i * walk.inner_stride(1)) * size;
          const std::byte* row = from + v * source.strides[dim] * size;
          if (bytes >= 0) {
            std::memcpy(target, row, static_cast<std::size_t>(bytes));
          } else {
            slice.run(target, row);
          }
        }
    };
    if (index.elements() != 0 && product(slice_dims) != 0)
      parallel_ranges(walk.rows(), out.elements(), rows);
    return ok;
  }
};

MadeKernel embedding(const StepContext& context) {
  RowGather gather{context.operand(0), context.operand(1), context.result(), 0};
  return make_index_kernel([gather](const KernelCall& call) {
    return gather(call.operands[0], call.operands[1], call.results[0]);
  });
}
MadeKernel index_select(const StepContext& context) {
  const auto dim =
      static_cast<std::size_t>(wrap_dim(context.int_or("dim", 0), context.operand(0).rank()));
  RowGather gather{context.operand(0), context.operand(1), context.result(), dim};
  if (gather.source.rank() == 0) {  // one element, repeated
    gather.source.dims = {1};
    gather.source.strides = {1};
    gather.out.dims = {1};
    gather.out.strides = {1};
  }
  if (gather.index.rank() == 0) {  // keeps the dim
    gather.index.dims = {1};
    gather.index.strides = {1};
  }
  return make_index_kernel([gather](const KernelCall& call) {
    return gather(call.operands[0], call.operands[1], call.results[0]);
  });
}

// Of a walk over the result, the source and the indices.
struct IndexedRead {
  Walk walk;
  Indices indices;
  std::int64_t size;  // bytes of an element

  bool operator()(const KernelCall& call) const {
    if (product(walk.dims) == 0) return true;
    const std::int64_t inner = walk.inner(), to_step = walk.inner_stride(0);
    const bool moves_rows =
        indices.are_fixed_along(walk) && to_step == 1 && walk.inner_stride(1) == 1;
    const std::int64_t block = moves_rows ? inner : kPlaces;
    std::atomic<bool> ok = true;
    parallel_ranges(walk.rows(), walk.rows() * inner,
                    [&](int, std::int64_t begin, std::int64_t end) {
                      std::int64_t places[kPlaces];
                      IndexedCursor at(walk, begin);
                      for (std::int64_t r = begin; r < end; ++r, at.next())
                        for (std::int64_t first = 0; first < inner; first += block) {
                          const std::int64_t n = moves_rows ? 1 : std::min(block, inner - first);
                          if (!indices.resolve(call, walk, at, 1, first, n, places)) {
                            ok = false;
                            return;
                          }
                          std::byte* to = call.results[0] + (at.offset(0) + first * to_step) * size;
                          if (moves_rows)
                            std::memcpy(to, call.operands[0] + places[0] * size,
                                        static_cast<std::size_t>(inner * size));
                          else
                            copy_from_places(size, to, to_step, call.operands[0], places, n);
                        }
                    });
    return ok.load();
  }
};

MadeKernel gather(const StepContext& context) {
  TensorSpec source = context.operand(0), index = context.operand(1), out = context.result();
  for (TensorSpec* t : {&source, &index, &out})
    if (t->rank() == 0) t->dims = t->strides = {1};
  // One element is read by indices of any rank, as long as there are none.
  if (source.rank() != index.rank())
    return make_index_kernel([](const KernelCall& /*call*/) { return true; });
  const auto dim = static_cast<std::size_t>(wrap_dim(context.int_or("dim", 0), source.rank()));
  const Indices indices{{{1, known_type(index.dtype), source.dims[dim], source.strides[dim]}}};
  source.strides[dim] = 0;
  return make_index_kernel(
      IndexedRead{Walk(index.dims, {out.strides, source.strides, index.strides}), indices,
                  sdk::element_bytes(source.dtype)});
}

MadeKernel index(const StepContext& context) {
  const TensorSpec source = context.operand(0), out = context.result();
  const sdk::IndexedDims indexed(context);
  // Strides of the kept dims of the source over the result's dims; 0 over the shared ones.
  Shape from(out.rank(), 0);
  std::size_t at = 0;
  for (std::size_t d = 0; d < source.rank(); ++d) {
    if (indexed.has(d)) continue;
    if (at == indexed.place) at += indexed.shared.size();
    from[at++] = source.strides[d];
  }
  std::vector<Shape> strides{out.strides, from};
  Indices indices{{}, /*wraps=*/true};
  for (std::size_t i = 0; i < indexed.dims.size(); ++i) {
    const TensorSpec& index = context.operand(indexed.operands[i]);
    const Shape own = broadcast_strides(index, indexed.shared);
    strides.emplace_back(out.rank(), 0);
    std::copy(own.begin(), own.end(),
              strides.back().begin() + static_cast<std::ptrdiff_t>(indexed.place));
    indices.all.push_back({indexed.operands[i], known_type(index.dtype),
                           source.dims[indexed.dims[i]], source.strides[indexed.dims[i]]});
  }
  Walk walk(out.dims, strides);
  walk.sort_by(0);
  return make_index_kernel(
      IndexedRead{std::move(walk), std::move(indices), sdk::element_bytes(source.dtype)});
}

std::optional<sdk::Refusal> refuse_second(const sdk::NodeView& node) {
  if (!node.has_operand(1) || !is_index(node.operand(1).dtype()))
    return refusal(BP_REFUSED_DTYPE, "indices must be int64 or int32");
  return std::nullopt;
}
constexpr KernelRow kRows[] = {
    {"aten.embedding", embedding, refuse_second},
    {"aten.index_select", index_select, refuse_second},
    {"aten.gather", gather, refuse_second},
    {"aten.index.Tensor", index, refuse_indices},
    {"aten._unsafe_index.Tensor", index, refuse_indices},
};

}  // namespace

KernelRows indexing_kernels() { return kRows; }

}  // namespace backplane::onednn
