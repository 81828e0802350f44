// Writes through indices: scatter, index_add, index_put and their kin. The result starts as a copy
// of the first operand; writes are made in order, so that the last one wins and sums are the same
// each time.
#include <backplane/sdk/indexing.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>

#include "kernels/kernel_registry.h"
#include "kernels/movement/index_values.h"
#include "kernels/movement/strided_copy.h"
#include "kernels/rows/block.h"
#include "parallel.h"

namespace backplane::onednn {
namespace {

using sdk::KernelCall;
using sdk::StepContext;
using sdk::TensorSpec;

enum class Combine : std::uint8_t { kReplace, kAdd, kMultiply, kMaximum, kMinimum };

template <Combine kHow, class T>
T combined(T a, T b) {
  if constexpr (kHow == Combine::kReplace) {
    return b;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(combined<kHow>(to_float(a), to_float(b)));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(combined<kHow>(to_float(a), to_float(b)));
  } else if constexpr (std::is_same_v<T, Bool>) {
    const bool x = a.byte != 0, y = b.byte != 0;
    return {kHow == Combine::kAdd || kHow == Combine::kMaximum ? x || y : x && y};
  } else if constexpr (kHow == Combine::kAdd) {
    return static_cast<T>(a + b);
  } else if constexpr (kHow == Combine::kMultiply) {
    return static_cast<T>(a * b);
  } else {  // NaN stays
    if (a != a || b != b) return static_cast<T>(a + b);
    return kHow == Combine::kMaximum ? std::max(a, b) : std::min(a, b);
  }
}

template <class F>
void with_combine(Combine how, const F& f) {
  switch (how) {
#define BP_CASE(name)    \
  case Combine::k##name: \
    return f(std::integral_constant<Combine, Combine::k##name>{});
    BP_CASE(Replace) BP_CASE(Add) BP_CASE(Multiply) BP_CASE(Maximum) BP_CASE(Minimum)
#undef BP_CASE
  }
}

// Operands and places of one write: `walk` has the target first, then the values, then the indices.
struct Writes {
  Walk walk;
  Indices indices;
  std::size_t values;  // operand; SIZE_MAX: a number
  std::uint64_t number = 0;
  Combine how = Combine::kReplace;
  Type type = Type::kF32;
  // The outermost dim is not indexed: its parts never meet.
  bool parallel = false;
};

class ScatterKernel : public sdk::Kernel {
 public:
  ScatterKernel(const StepContext& context, Writes writes)
      : writes_(std::move(writes)),
        start_(context.result().dims, context.result().strides,
               broadcast_strides(context.operand(0), context.result().dims),
               sdk::element_bytes(context.result().dtype)),
        empty_(context.result().elements() == 0 || product(writes_.walk.dims) == 0) {}

  sdk::Status run(const KernelCall& call) const override {
    if (call.results[0] == nullptr) return {};
    start_.run(call.results[0], call.operands[0]);
    if (empty_) return {};
    std::atomic<bool> ok = true;
    with_type(writes_.type, [&](auto sample) {
      using T = decltype(sample);
      const std::int64_t rows = writes_.walk.rows();
      if (!writes_.parallel || writes_.walk.dims.size() < 2) {
        write<T>(call, 0, rows, ok);
        return;
      }
      const std::int64_t outer = writes_.walk.dims[0];
      parallel_ranges(outer, rows * writes_.walk.inner() * 4,
                      [&](int, std::int64_t begin, std::int64_t end) {
                        write<T>(call, rows / outer * begin, rows / outer * end, ok);
                      });
    });
    if (!ok) return sdk::Status(BP_INVALID_ARGUMENT, "an index is out of range");
    return {};
  }

 private:
  template <class T>
  void write(const KernelCall& call, std::int64_t begin, std::int64_t end,
             std::atomic<bool>& ok) const {
    const Walk& walk = writes_.walk;
    const std::int64_t inner = walk.inner(), step = walk.inner_stride(0);
    const bool moves_rows = writes_.indices.are_fixed_along(walk);
    const auto* from = writes_.values == SIZE_MAX
                           ? nullptr
                           : reinterpret_cast<const T*>(call.operands[writes_.values]);
    T fixed{};
    std::memcpy(&fixed, &writes_.number, sizeof fixed);
    std::int64_t places[kPlaces];
    IndexedCursor at(walk, begin);
    for (std::int64_t r = begin; r < end; ++r, at.next()) {
      const std::int64_t block = moves_rows ? inner : kPlaces;
      for (std::int64_t first = 0; first < inner; first += block) {
        const std::int64_t n = std::min(block, inner - first);
        if (!writes_.indices.resolve(call, walk, at, 0, first, moves_rows ? 1 : n, places)) {
          ok = false;
          return;
        }
        // A number is read again and again.
        const T* values = from ? from + at.offset(1) + first * walk.inner_stride(1) : &fixed;
        const std::int64_t value_step = from ? walk.inner_stride(1) : 0;
        auto* to = reinterpret_cast<T*>(call.results[0]);
        with_combine(writes_.how, [&](auto how) {
          if (!moves_rows) {
            for (std::int64_t i = 0; i < n; ++i)
              to[places[i]] = combined<how()>(to[places[i]], values[i * value_step]);
          } else if (step == 1 && value_step == 1) {
#pragma GCC ivdep
            for (std::int64_t i = 0; i < n; ++i)
              to[places[0] + i] = combined<how()>(to[places[0] + i], values[i]);
          } else {
            for (std::int64_t i = 0; i < n; ++i) {
              T& place = to[places[0] + i * step];
              place = combined<how()>(place, values[i * value_step]);
            }
          }
        });
      }
    }
  }

  Writes writes_;
  StridedCopy start_;
  bool empty_;
};

MadeKernel make(const StepContext& context, Writes writes) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<ScatterKernel>(context, std::move(writes)));
}

// self, index, src (or a number): along one dim.
MadeKernel scatter_along(const StepContext& context, Combine how) {
  TensorSpec out = context.result(), index = context.operand(1);
  if (out.rank() == 0) out.dims = out.strides = {1};
  if (index.rank() == 0) index.dims = index.strides = {1};
  const auto dim = static_cast<std::size_t>(wrap_dim(context.int_or("dim", 0), out.rank()));
  Shape target = out.strides;
  target[dim] = 0;
  Shape from(index.rank(), 0);
  const bool tensor = context.has_operand(2);
  if (tensor && context.operand(2).rank() > 0) from = context.operand(2).strides;
  if (product(index.dims) == 0) {  // of any rank, as is what nothing is read of
    index.dims.assign(out.rank(), 0);
    index.strides = from = index.dims;
  }
  Writes w{Walk(index.dims, {target, from, index.strides}),
           {{{1, known_type(index.dtype), out.dims[dim], out.strides[dim]}}},
           tensor ? 2 : SIZE_MAX};
  w.type = known_type(out.dtype);
  w.how = how;
  if (!tensor) {
    const bp_attribute* value = context.node().attribute("value");
    if (value && value->kind == BP_ATTRIBUTE_FLOAT) {
      store_function(w.type, Domain::kF64)(&w.number, 1, &value->real, 1);
    } else {
      const std::int64_t v = context.int_or("value", 0);
      store_function(w.type, Domain::kI64)(&w.number, 1, &v, 1);
    }
  }
  return make(context, std::move(w));
}
MadeKernel scatter(const StepContext& context) { return scatter_along(context, Combine::kReplace); }
MadeKernel scatter_add(const StepContext& context) { return scatter_along(context, Combine::kAdd); }

std::optional<Combine> combine_of(std::string_view reduce) {
  if (reduce == "sum" || reduce == "add") return Combine::kAdd;
  if (reduce == "prod" || reduce == "multiply") return Combine::kMultiply;
  if (reduce == "amax") return Combine::kMaximum;
  if (reduce == "amin") return Combine::kMinimum;
  return std::nullopt;
}
MadeKernel scatter_reduce(const StepContext& context) {
  return scatter_along(context, *combine_of(context.node().text_or("reduce", "")));
}

// self, index, source: whole slices along one dim.
MadeKernel index_slices(const StepContext& context, Combine how) {
  TensorSpec out = context.result(), index = context.operand(1), source = context.operand(2);
  for (TensorSpec* t : {&out, &index, &source})
    if (t->rank() == 0) t->dims = t->strides = {1};
  const auto dim = static_cast<std::size_t>(wrap_dim(context.int_or("dim", 0), out.rank()));
  Shape target = out.strides, along(out.rank(), 0);
  target[dim] = 0;
  along[dim] = index.strides[0];
  Shape space = out.dims;
  space[dim] = index.dims[0];
  Writes w{Walk(space, {target, broadcast_strides(source, space), along}),
           {{{1, known_type(index.dtype), out.dims[dim], out.strides[dim]}}},
           2};
  w.type = known_type(out.dtype);
  w.how = how;
  w.parallel = dim > 0 && out.dims[0] > 1;
  return make(context, std::move(w));
}
MadeKernel index_add(const StepContext& context) { return index_slices(context, Combine::kAdd); }
MadeKernel index_copy(const StepContext& context) {
  return index_slices(context, Combine::kReplace);
}

// self, one index per indexed dim, values: the dims of the values are those of self, where the
// shared dims of the indices stand for the indexed ones.
MadeKernel index_put(const StepContext& context) {
  const sdk::NodeView node = context.node();
  const TensorSpec& out = context.result();
  const std::size_t values = node.list_first() + node.list_count();
  const sdk::IndexedDims indexed(context);
  Shape space, target;
  std::size_t shared_at = 0;
  const auto insert_shared = [&] {
    shared_at = space.size();
    space.insert(space.end(), indexed.shared.begin(), indexed.shared.end());
    target.resize(space.size(), 0);
  };
  for (std::size_t d = 0; d < out.rank(); ++d) {
    if (d == indexed.place) insert_shared();
    if (indexed.has(d)) continue;
    space.push_back(out.dims[d]);
    target.push_back(out.strides[d]);
  }
  if (indexed.place >= out.rank()) insert_shared();
  std::vector<Shape> strides{target, broadcast_strides(context.operand(values), space)};
  Indices indices{{}, /*wraps=*/true};
  for (std::size_t i = 0; i < indexed.dims.size(); ++i) {
    const TensorSpec& index = context.operand(indexed.operands[i]);
    const Shape own = broadcast_strides(index, indexed.shared);
    strides.emplace_back(space.size(), 0);
    std::copy(own.begin(), own.end(),
              strides.back().begin() + static_cast<std::ptrdiff_t>(shared_at));
    indices.all.push_back({indexed.operands[i], known_type(index.dtype), out.dims[indexed.dims[i]],
                           out.strides[indexed.dims[i]]});
  }
  Writes w{Walk(space, strides), std::move(indices), values};
  w.walk.merge();
  w.how = node.bool_or("accumulate", false) ? Combine::kAdd : Combine::kReplace;
  w.type = known_type(out.dtype);
  return make(context, std::move(w));
}

// self, src written through size, stride and storage_offset.
MadeKernel as_strided_scatter(const StepContext& context) {
  const TensorSpec &out = context.result(), &source = context.operand(1);
  const Shape size = context.ints("size"), stride = context.ints("stride");
  const std::int64_t offset = context.int_or("storage_offset", 0);
  const StridedCopy first(out.dims, out.strides, context.operand(0).strides,
                          sdk::element_bytes(out.dtype));
  const StridedCopy second(size, stride, broadcast_strides(source, size),
                           sdk::element_bytes(out.dtype));
  return make_kernel([=, bytes = offset * sdk::element_bytes(out.dtype)](const KernelCall& call) {
    if (call.results[0] == nullptr) return;
    first.run(call.results[0], call.operands[0]);
    second.run(call.results[0] + bytes, call.operands[1]);
  });
}

using Answer = std::optional<sdk::Refusal>;

Answer same_types(const sdk::NodeView& node, std::size_t operand) {
  const auto type = type_of(node.result().dtype());
  for (const std::size_t i : {std::size_t{0}, operand})
    if (node.has_operand(i) && type_of(node.operand(i).dtype()) != type)
      return refusal(BP_REFUSED_DTYPE, "values of the result's type only");
  return std::nullopt;
}
Answer refuse_scatter(const sdk::NodeView& node) {
  if (!is_index(node.operand(1).dtype()))
    return refusal(BP_REFUSED_DTYPE, "indices must be int64 or int32");
  if (const bp_attribute* a = node.attribute("value"); a && a->kind == BP_ATTRIBUTE_STRING)
    return refusal(BP_REFUSED_DTYPE, "no complex numbers");
  if (node.attribute("alpha") && node.real_or("alpha", 1) != 1)
    return refusal(BP_REFUSED_ATTRIBUTE, "no scale");
  return same_types(node, 2);
}
Answer refuse_scatter_reduce(const sdk::NodeView& node) {
  if (!combine_of(node.text_or("reduce", "")) || !node.bool_or("include_self", true))
    return refusal(BP_REFUSED_ATTRIBUTE, "sum, prod, amax and amin with self only");
  return refuse_scatter(node);
}
Answer refuse_index_put(const sdk::NodeView& node) {
  if (auto refused = refuse_indices(node)) return refused;
  return same_types(node, node.list_first() + node.list_count());
}
// The base must be dense, so that the view lies in it.
Answer refuse_as_strided(const sdk::NodeView& node) {
  bp_dim step = 1;
  for (std::size_t d = node.result().rank(); d-- > 0;) {
    const bp_dim size = node.result().dims()[d];
    if (size < 0) return refusal(BP_REFUSED_DYNAMIC, "sizes that vary");
    if (size != 1 && (node.result().strides()[d] != step || node.operand(0).strides()[d] != step))
      return refusal(BP_REFUSED_LAYOUT, "a dense base only");
    step *= size;
  }
  return same_types(node, 1);
}

constexpr KernelRow kRows[] = {
    {"aten.scatter.src", scatter, refuse_scatter},
    {"aten.scatter.value", scatter, refuse_scatter},
    {"aten.scatter_add", scatter_add, refuse_scatter},
    {"aten.scatter.reduce", scatter_reduce, refuse_scatter_reduce},
    {"aten.scatter.value_reduce", scatter_reduce, refuse_scatter_reduce},
    {"aten.scatter_reduce.two", scatter_reduce, refuse_scatter_reduce},
    {"aten.index_add", index_add, refuse_scatter},
    {"aten.index_copy", index_copy, refuse_scatter},
    {"aten.index_put", index_put, refuse_index_put},
    {"aten._unsafe_index_put", index_put, refuse_index_put},
    {"aten.as_strided_scatter", as_strided_scatter, refuse_as_strided},
};

}  // namespace

KernelRows scatter_kernels() { return kRows; }

}  // namespace backplane::onednn
