// Operators that only place elements: a result is an optional fill and copies of regions.
#include <algorithm>
#include <cstring>

#include "kernels/kernel_registry.h"
#include "kernels/movement/strided_copy.h"
#include "kernels/rows/block.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;
using sdk::TensorSpec;

class Regions {
 public:
  explicit Regions(const StepContext& context) : context_(context), out_(context.result()) {}

  void fill(std::uint64_t value) {
    fill_ = true;
    value_ = value;
  }
  // Region of the result (dims, strides, offset in elements) from a region of an operand.
  void copy(std::size_t operand, const Shape& dims, const Shape& to, std::int64_t to_offset,
            const Shape& from, std::int64_t from_offset) {
    if (product(dims) == 0) return;
    const std::int64_t size = sdk::element_bytes(out_.dtype);
    parts_.push_back(
        {operand, StridedCopy(dims, to, from, size), to_offset * size, from_offset * size});
  }
  void copy_all(std::size_t operand) {
    copy(operand, out_.dims, out_.strides, 0,
         broadcast_strides(context_.operand(operand), out_.dims), 0);
  }
  MadeKernel make() {
    return make_kernel([out = out_, fill = fill_, value = value_,
                        parts = std::move(parts_)](const KernelCall& call) {
      if (out.elements() == 0) return;
      if (fill)
        strided_fill(out.dims, out.strides, sdk::element_bytes(out.dtype), call.results[0], value);
      for (const Part& p : parts)
        p.copy.run(call.results[0] + p.to, call.operands[p.operand] + p.from);
    });
  }

 private:
  struct Part {
    std::size_t operand;
    StridedCopy copy;
    std::int64_t to, from;  // bytes
  };
  const StepContext& context_;
  TensorSpec out_;
  bool fill_ = false;
  std::uint64_t value_ = 0;
  std::vector<Part> parts_;
};

std::size_t dim_of(const StepContext& context, std::size_t rank) {
  return static_cast<std::size_t>(wrap_dim(context.int_or("dim", 0), rank));
}

MadeKernel cat(const StepContext& context) {
  const TensorSpec& out = context.result();
  const auto node = context.node();
  const std::size_t dim = dim_of(context, out.rank());
  Regions regions(context);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < node.list_count(); ++i) {
    const TensorSpec& in = context.operand(node.list_first() + i);
    if (in.rank() != out.rank()) continue;  // the empty 1-d tensor that cat skips
    regions.copy(node.list_first() + i, in.dims, out.strides, at * out.strides[dim], in.strides, 0);
    at += in.dims[dim];
  }
  return regions.make();
}

MadeKernel stack(const StepContext& context) {
  const TensorSpec& out = context.result();
  const auto node = context.node();
  const std::size_t dim = dim_of(context, out.rank());
  Shape to = out.strides;
  to.erase(to.begin() + static_cast<std::ptrdiff_t>(dim));
  Regions regions(context);
  for (std::size_t i = 0; i < node.list_count(); ++i) {
    const TensorSpec& in = context.operand(node.list_first() + i);
    regions.copy(node.list_first() + i, in.dims, to,
                 static_cast<std::int64_t>(i) * out.strides[dim], in.strides, 0);
  }
  return regions.make();
}

std::uint64_t element(const StepContext& context, std::string_view name) {
  const Type type = known_type(context.result().dtype);
  std::uint64_t bits = 0;
  const bp_attribute* a = context.node().attribute(name);
  if (a == nullptr) return 0;
  if (a->kind == BP_ATTRIBUTE_FLOAT) {
    store_function(type, Domain::kF64)(&bits, 1, &a->real, 1);
  } else {
    const std::int64_t v = context.int_or(name, 0);
    store_function(type, Domain::kI64)(&bits, 1, &v, 1);
  }
  return bits;
}

// `pad` lists before and after, last dim first; negative ones cut off.
MadeKernel constant_pad(const StepContext& context) {
  const TensorSpec &in = context.operand(0), &out = context.result();
  const auto pad = context.ints("pad");
  Shape dims = in.dims;
  std::int64_t to = 0, from = 0;
  for (std::size_t i = 0; i + 1 < pad.size(); i += 2) {
    const std::size_t d = in.rank() - 1 - i / 2;
    const std::int64_t before = pad[i], after = pad[i + 1];
    dims[d] += std::min<std::int64_t>(before, 0) + std::min<std::int64_t>(after, 0);
    dims[d] = std::max<std::int64_t>(dims[d], 0);
    to += std::max<std::int64_t>(before, 0) * out.strides[d];
    from += std::max<std::int64_t>(-before, 0) * in.strides[d];
  }
  Regions regions(context);
  regions.fill(element(context, "value"));
  regions.copy(0, dims, out.strides, to, in.strides, from);
  return regions.make();
}

// The slice that start, end, step name, as dims and an offset.
struct Slice {
  std::int64_t start, length, step;
};
Slice slice_of(const StepContext& context, std::int64_t size) {
  const auto clamp = [&](std::int64_t v) {
    return std::clamp<std::int64_t>(v < 0 ? v + size : v, 0, size);
  };
  const std::int64_t start = clamp(context.int_or("start", 0)),
                     end = clamp(context.int_or("end", INT64_MAX)),
                     step = context.int_or("step", 1);
  return {start, end > start ? (end - start + step - 1) / step : 0, step};
}

void into_slice(const StepContext& context, Regions& regions, std::size_t operand) {
  const TensorSpec& out = context.result();
  const std::size_t dim = dim_of(context, out.rank());
  const Slice s = slice_of(context, out.dims[dim]);
  Shape dims = out.dims, to = out.strides;
  dims[dim] = s.length;
  to[dim] *= s.step;
  regions.copy(operand, dims, to, s.start * out.strides[dim],
               broadcast_strides(context.operand(operand), dims), 0);
}
void into_selection(const StepContext& context, Regions& regions, std::size_t operand) {
  const TensorSpec& out = context.result();
  const std::size_t dim = dim_of(context, out.rank());
  std::int64_t index = context.int_or("index", 0);
  if (index < 0) index += out.dims[dim];
  Shape dims = out.dims, to = out.strides;
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(dim));
  to.erase(to.begin() + static_cast<std::ptrdiff_t>(dim));
  regions.copy(operand, dims, to, index * out.strides[dim],
               broadcast_strides(context.operand(operand), dims), 0);
}
MadeKernel slice_backward(const StepContext& context) {
  Regions regions(context);
  regions.fill(0);
  into_slice(context, regions, 0);
  return regions.make();
}
MadeKernel select_backward(const StepContext& context) {
  Regions regions(context);
  regions.fill(0);
  into_selection(context, regions, 0);
  return regions.make();
}
MadeKernel slice_scatter(const StepContext& context) {
  Regions regions(context);
  regions.copy_all(0);
  into_slice(context, regions, 1);
  return regions.make();
}
MadeKernel select_scatter(const StepContext& context) {
  Regions regions(context);
  regions.copy_all(0);
  into_selection(context, regions, 1);
  return regions.make();
}
void into_diagonal(const StepContext& context, Regions& regions, std::size_t operand) {
  const TensorSpec& out = context.result();
  const auto d1 = static_cast<std::size_t>(wrap_dim(context.int_or("dim1", 0), out.rank()));
  const auto d2 = static_cast<std::size_t>(wrap_dim(context.int_or("dim2", 1), out.rank()));
  const std::int64_t offset = context.int_or("offset", 0);
  const TensorSpec& in = context.operand(operand);
  Shape to;
  for (std::size_t d = 0; d < out.rank(); ++d)
    if (d != d1 && d != d2) to.push_back(out.strides[d]);
  to.push_back(out.strides[d1] + out.strides[d2]);
  regions.copy(operand, in.dims, to,
               offset >= 0 ? offset * out.strides[d2] : -offset * out.strides[d1], in.strides, 0);
}
MadeKernel diagonal_scatter(const StepContext& context) {
  Regions regions(context);
  regions.copy_all(0);
  into_diagonal(context, regions, 1);
  return regions.make();
}
MadeKernel diagonal_backward(const StepContext& context) {
  Regions regions(context);
  regions.fill(0);
  into_diagonal(context, regions, 0);
  return regions.make();
}

MadeKernel flip(const StepContext& context) {
  const TensorSpec &in = context.operand(0), &out = context.result();
  Shape from = in.strides;
  std::int64_t offset = 0;
  for (const std::int64_t d : context.ints("dims")) {
    const auto dim = static_cast<std::size_t>(wrap_dim(d, in.rank()));
    if (in.rank() == 0) continue;
    offset += (in.dims[dim] - 1) * in.strides[dim];
    from[dim] = -in.strides[dim];
  }
  Regions regions(context);
  regions.copy(0, in.dims, out.strides, 0, from, offset);
  return regions.make();
}

// Every listed dim turns by its shift: two pieces a dim.
MadeKernel roll(const StepContext& context) {
  const TensorSpec &in = context.operand(0), &out = context.result();
  auto dims = context.ints("dims");
  const auto shifts = context.ints("shifts");
  Regions regions(context);
  // Of the flattened tensor, which is refused but for one dim at most.
  if (dims.empty() && in.rank() == 1) dims.push_back(0);
  struct Piece {
    Shape dims;
    std::int64_t to = 0, from = 0;
  };
  std::vector<Piece> pieces{{in.dims, 0, 0}};
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const auto d = static_cast<std::size_t>(wrap_dim(dims[i], in.rank()));
    const std::int64_t n = in.dims[d], s = n == 0 ? 0 : ((shifts[i] % n) + n) % n;
    std::vector<Piece> next;
    for (const Piece& p : pieces) {
      Piece head = p, tail = p;
      head.dims[d] = s;
      head.from += (n - s) * in.strides[d];
      tail.dims[d] = n - s;
      tail.to += s * out.strides[d];
      next.push_back(head);
      next.push_back(tail);
    }
    pieces = std::move(next);
  }
  for (const Piece& p : pieces) regions.copy(0, p.dims, out.strides, p.to, in.strides, p.from);
  return regions.make();
}
std::optional<sdk::Refusal> refuse_roll(const sdk::NodeView& node) {
  const bp_attribute* dims = node.attribute("dims");
  if (dims && dims->count > 0) {
    const auto rank = static_cast<std::int64_t>(node.operand(0).rank());
    const auto dim = [&](std::size_t i) {
      return wrap_dim(dims->integers[i], node.operand(0).rank());
    };
    for (std::size_t i = 0; i < dims->count; ++i) {
      if (dim(i) < 0 || dim(i) >= rank)
        return refusal(BP_REFUSED_ATTRIBUTE, "a dim that the tensor has not");
      for (std::size_t j = 0; j < i; ++j)
        if (dim(i) == dim(j)) return refusal(BP_REFUSED_ATTRIBUTE, "a dim rolled twice");
    }
    return std::nullopt;
  }
  return node.operand(0).rank() <= 1 ? std::nullopt
                                     : refusal(BP_REFUSED_ATTRIBUTE, "roll of a flattened tensor");
}

MadeKernel repeat(const StepContext& context) {
  const TensorSpec &in = context.operand(0), &out = context.result();
  const auto repeats = context.ints("repeats");
  const std::size_t lead = repeats.size() - in.rank();
  Shape dims, to, from;
  for (std::size_t d = 0; d < repeats.size(); ++d) {
    const std::int64_t size = d < lead ? 1 : in.dims[d - lead];
    dims.push_back(repeats[d]);
    to.push_back(size * out.strides[d]);
    from.push_back(0);
    dims.push_back(size);
    to.push_back(out.strides[d]);
    from.push_back(d < lead ? 0 : in.strides[d - lead]);
  }
  Regions regions(context);
  regions.copy(0, dims, to, 0, from, 0);
  return regions.make();
}

// Keeps one side of a diagonal of the last two dims.
MadeKernel triangle(const StepContext& context, bool lower) {
  const TensorSpec in = context.operand(0), out = context.result();
  const std::int64_t asked = context.int_or("diagonal", 0);
  return make_kernel([=](const KernelCall& call) {
    if (out.elements() == 0) return;
    const std::size_t rank = out.rank();
    const std::int64_t rows = out.dims[rank - 2], columns = out.dims[rank - 1];
    const std::int64_t diagonal = std::clamp(asked, -rows, columns);
    const std::int64_t to_step = out.strides[rank - 1], from_step = in.strides[rank - 1];
    Walk walk(Shape(out.dims.begin(), out.dims.end() - 1),
              {Shape(out.strides.begin(), out.strides.end() - 1),
               Shape(in.strides.begin(), in.strides.end() - 1)});
    const std::int64_t size = sdk::element_bytes(out.dtype);
    const std::int64_t total = out.elements() / columns;
    Walk every(walk.dims, walk.strides);
    every.dims.push_back(1);
    for (Shape& s : every.strides) s.push_back(0);
    with_size(size, [&](auto sample) {
      using T = decltype(sample);
      parallel_ranges(total, out.elements(), [&](int, std::int64_t begin, std::int64_t end) {
        RowCursor<2> at(every, begin);
        for (std::int64_t u = begin; u < end; ++u, at.next()) {
          auto* to = reinterpret_cast<T*>(call.results[0]) + at.offset(0);
          const auto* from = reinterpret_cast<const T*>(call.operands[0]) + at.offset(1);
          const std::int64_t edge = u % rows + diagonal;  // the diagonal's column in this row
          for (std::int64_t c = 0; c < columns; ++c)
            to[c * to_step] = (lower ? c <= edge : c >= edge) ? from[c * from_step] : T{0};
        }
      });
    });
  });
}
MadeKernel tril(const StepContext& context) { return triangle(context, true); }
MadeKernel triu(const StepContext& context) { return triangle(context, false); }

MadeKernel copy_first(const StepContext& context) {
  return make_copy_kernel(context.operand(0), context.result());
}
MadeKernel expand_copy(const StepContext& context) {
  Regions regions(context);
  regions.copy_all(0);
  return regions.make();
}
MadeKernel permute_copy(const StepContext& context) {
  const TensorSpec& in = context.operand(0);
  Shape from;
  for (const std::int64_t d : context.ints("dims"))
    from.push_back(in.strides[static_cast<std::size_t>(wrap_dim(d, in.rank()))]);
  Regions regions(context);
  regions.copy(0, context.result().dims, context.result().strides, 0, from, 0);
  return regions.make();
}
// aten.unfold_backward: grad of size-`size` windows at `step`.
MadeKernel unfold_backward(const StepContext& context) {
  const TensorSpec in = context.operand(0), out = context.result();
  const auto dim = static_cast<std::size_t>(wrap_dim(context.int_or("dim", 0), out.rank()));
  const std::int64_t step = context.int_or("step", 1);
  return make_kernel([=](const KernelCall& call) {
    if (out.elements() == 0) return;
    strided_fill(out.dims, out.strides, 4, call.results[0], 0);
    if (in.elements() == 0) return;
    Shape to = out.strides;
    to[dim] *= step;
    to.push_back(out.strides[dim]);
    Walk walk(in.dims, {to, in.strides});
    RowCursor<2> at(walk, 0);
    for (std::int64_t r = 0; r < walk.rows(); ++r, at.next())
      for (std::int64_t i = 0; i < walk.inner(); ++i)
        reinterpret_cast<float*>(call.results[0])[at.offset(0) + i * walk.inner_stride(0)] +=
            reinterpret_cast<const float*>(
                call.operands[0])[at.offset(1) + i * walk.inner_stride(1)];
  });
}
std::optional<sdk::Refusal> refuse_unfold_backward(const sdk::NodeView& node) {
  if (type_of(node.result().dtype()) != Type::kF32)
    return refusal(BP_REFUSED_DTYPE, "float32 only");
  if (node.result().rank() == 0) return refusal(BP_REFUSED_SHAPE, "windows of a scalar");
  return std::nullopt;
}

// Elements are moved, never converted.
std::optional<sdk::Refusal> refuse_mixed(const sdk::NodeView& node) {
  for (std::size_t i = 0; i < node.operand_count(); ++i)
    if (node.has_operand(i) && type_of(node.operand(i).dtype()) != type_of(node.result().dtype()))
      return refusal(BP_REFUSED_DTYPE, "operands and result of one type only");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.cat", cat, refuse_mixed},
    {"aten.stack", stack, refuse_mixed},
    {"aten.constant_pad_nd", constant_pad, refuse_mixed},
    {"aten.slice_backward", slice_backward, refuse_mixed},
    {"aten.select_backward", select_backward, refuse_mixed},
    {"aten.diagonal_backward", diagonal_backward, refuse_mixed},
    {"aten.slice_scatter", slice_scatter, refuse_mixed},
    {"aten.select_scatter", select_scatter, refuse_mixed},
    {"aten.diagonal_scatter", diagonal_scatter, refuse_mixed},
    {"aten.flip", flip},
    {"aten.roll", roll, refuse_roll},
    {"aten.repeat", repeat},
    {"aten.tril", tril},
    {"aten.triu", triu},
    {"aten.expand_copy", expand_copy},
    {"aten.permute_copy", permute_copy},
    {"aten.alias_copy", copy_first},
    {"aten.detach_copy", copy_first},
    {"aten.unfold_backward", unfold_backward, refuse_unfold_backward},
};

}  // namespace

KernelRows movement_kernels() { return kRows; }

}  // namespace backplane::onednn
