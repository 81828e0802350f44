// Scaled dot product attention: one kernel where flash_attention.hpp takes it, else products and a
// softmax; its gradient computes the probabilities again from the saved logarithms of the rows'
// sums.
#include <cmath>
#include <limits>

#include "flash_attention.hpp"
#include "gemm.hpp"
#include "registry.hpp"

namespace backplane::kernels {
namespace {

using kernelgen::Op;
using kernelgen::Reduction;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Result<Attention> read_attention(Builder& b, std::size_t first, std::size_t mask) {
  Attention a;
  TensorView* const views[] = {&a.query, &a.key, &a.value};
  for (std::size_t i = 0; i < 3; ++i) {
    auto view = b.operand(first + i);
    if (!view.ok()) return view.status();
    *views[i] = std::move(*view);
  }
  if (b.step().has_operand(mask)) {
    auto view = b.operand(mask);
    if (!view.ok()) return view.status();
    a.mask = std::move(*view);
  }
  a.batch = a.query.dims[0];
  a.heads = a.query.dims[1];
  a.queries = a.query.dims[2];
  a.depth = a.query.dims[3];
  a.keys = a.key.dims[2];
  a.values = a.value.dims[3];
  a.causal = b.step().node().bool_or("is_causal", false);
  a.scale = b.step().node().real_or("scale", 1 / std::sqrt(static_cast<double>(a.depth)));
  a.type = kernelgen::compute_type(a.query.storage);
  return a;
}

// A matrix of one head; several heads of queries may share one of keys.
Factor head(const Attention& a, const TensorView& t, bool transposed = false) {
  if (t.dims[1] == a.heads) return Factor::matrix(t, transposed);
  const std::int64_t shared = a.heads / t.dims[1];
  Factor f;
  f.batched = {t.dims[0] != 1, true};
  f.element = [t, shared, transposed](Draft& d, std::span<const Expr> batch, Expr row,
                                      Expr column) {
    const Expr own = d.e().div(batch[1], d.index(shared));
    return d.load(
        t, transposed ? Indices{batch[0], own, column, row} : Indices{batch[0], own, row, column});
  };
  return f;
}

// x * scale, with the mask added. Axes: batch, head, query, key.
Expr score(const Attention& a, Draft& d, Expr x, const Indices& axes) {
  Expressions& e = d.e();
  Expr s = e.mul(x, e.constant(a.type, a.scale));
  if (a.mask) {
    const Indices own(axes.end() - static_cast<std::ptrdiff_t>(a.mask->dims.size()), axes.end());
    const Expr m = d.load(*a.mask, own);
    s = e.type(m) == kernelgen::Type::kBool ? e.select(m, s, e.constant(a.type, -kInfinity))
                                            : e.add(s, m);
  }
  if (a.causal)
    s = e.select(e.binary(Op::kLe, axes[3], axes[2]), s, e.constant(a.type, -kInfinity));
  return s;
}

Gemm product_of(const Attention& a, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                Factor left, Factor right) {
  Gemm g;
  g.batch = {a.batch, a.heads};
  g.rows = {rows};
  g.columns = columns;
  g.depth = depth;
  g.a = std::move(left);
  g.b = std::move(right);
  return g;
}
Storage kept(const Attention& a) {
  return a.type == kernelgen::Type::kF64 ? Storage::kF64 : Storage::kF32;
}
// Of what is a factor of a product: a library wants both of one type.
Storage factor_storage(const Builder& b, const Attention& a) {
  return b.facts().has_library_products ? a.query.storage : kept(a);
}

Status forward(Builder& b, std::size_t mask) {
  auto read = read_attention(b, 0, mask);
  if (!read.ok()) return read.status();
  const Attention& a = *read;
  std::optional<TensorView> sums;
  if (b.wants(1) && b.result(1).dims.size() == 3) sums = b.result(1);
  auto is_done = add_flash_attention(b, a, b.result(0), sums);
  if (!is_done.ok() || *is_done) return is_done.status();
  const TensorView scores = b.scratch(kept(a), {a.batch, a.heads, a.queries, a.keys});
  Gemm first = product_of(a, a.queries, a.keys, a.depth, head(a, a.query), head(a, a.key, true));
  first.epilogue = [&](Draft& d, Expr x, const Indices& axes) -> Status {
    d.store(scores, axes, score(a, d, x, axes));
    return {};
  };
  BP_SDK_RETURN_IF_ERROR(add_gemm(b, first));
  const TensorView weights = b.scratch(factor_storage(b, a), scores.dims);
  {
    Draft d(b, {a.batch, a.heads, a.queries}, {a.keys});
    Expressions& e = d.e();
    Indices at = d.outer();
    at.push_back(d.loop()[0]);
    const Expr x = d.load(scores, at), top = e.reduce(Reduction::kMax, x);
    const Expr masked =
        e.binary(Op::kEq, top, e.constant(a.type, -kInfinity));  // nothing to attend to
    const Expr power =
        e.unary(Op::kExpNormal, e.sub(x, e.select(masked, e.constant(a.type, 0), top)));
    const Expr sum = e.reduce(Reduction::kSum, power);
    d.store(
        weights, at,
        e.mul(power, e.select(masked, e.constant(a.type, 0), e.div(e.constant(a.type, 1), sum))));
    if (sums) d.store(*sums, d.outer(), e.add(e.unary(Op::kLog, sum), top));
    BP_SDK_RETURN_IF_ERROR(d.finish());
  }
  Gemm second =
      product_of(a, a.queries, a.values, a.keys, Factor::matrix(weights), head(a, a.value));
  second.result = b.result(0);
  second.epilogue = [&](Draft& d, Expr x, const Indices& axes) -> Status {
    d.store(b.result(0), axes, x);
    return {};
  };
  return add_gemm(b, second);
}
Status flash(Builder& b) { return forward(b, 3); }

// grad, query, key, value, out, logsumexp, mask: gradients of query, key and value
Status flash_backward(Builder& b) {
  auto read = read_attention(b, 1, 6);
  if (!read.ok()) return read.status();
  const Attention& a = *read;
  auto grad = b.operand(0), out = b.operand(4), lse = b.operand(5);
  for (auto* view : {&grad, &out, &lse})
    if (!view->ok()) return view->status();
  const auto wanted = [&](std::size_t i) {
    return b.wants(i) ? std::optional(b.result(i)) : std::nullopt;
  };
  auto is_done = add_flash_gradients(b, a, {*grad, *out, *lse, wanted(0), wanted(1), wanted(2)});
  if (!is_done.ok() || *is_done) return is_done.status();
  if (a.heads != a.key.dims[1]) return {BP_UNSUPPORTED, "gradients of shared heads"};
  const Shape square = {a.batch, a.heads, a.queries, a.keys};
  const TensorView delta = b.scratch(kept(a), {a.batch, a.heads, a.queries});
  const TensorView weights = b.scratch(factor_storage(b, a), square),
                   slope = b.scratch(factor_storage(b, a), square);
  {
    Draft d(b, delta.dims, {a.values});
    Indices at = d.outer();
    at.push_back(d.loop()[0]);
    d.store(delta, d.outer(),
            d.e().reduce(Reduction::kSum, d.e().mul(d.load(*grad, at), d.load(*out, at))));
    BP_SDK_RETURN_IF_ERROR(d.finish());
  }
  const auto row = [](const Indices& axes) { return Indices{axes[0], axes[1], axes[2]}; };
  Gemm scores = product_of(a, a.queries, a.keys, a.depth, head(a, a.query), head(a, a.key, true));
  scores.epilogue = [&](Draft& d, Expr x, const Indices& axes) -> Status {
    Expressions& e = d.e();
    const Expr l = d.load(*lse, row(axes));
    const Expr nothing = e.binary(Op::kEq, l, e.constant(a.type, -kInfinity));
    const Expr p = e.unary(Op::kExpNormal, e.sub(score(a, d, x, axes), e.cast(l, a.type)));
    d.store(weights, axes, e.select(nothing, e.constant(a.type, 0), p));
    return {};
  };
  BP_SDK_RETURN_IF_ERROR(add_gemm(b, scores));
  Gemm slopes =
      product_of(a, a.queries, a.keys, a.values, Factor::matrix(*grad), head(a, a.value, true));
  slopes.epilogue = [&](Draft& d, Expr x, const Indices& axes) -> Status {
    Expressions& e = d.e();
    const Expr inner = e.sub(x, d.load(delta, row(axes)));
    d.store(slope, axes, e.mul(e.mul(d.load(weights, axes), inner), e.constant(a.type, a.scale)));
    return {};
  };
  BP_SDK_RETURN_IF_ERROR(add_gemm(b, slopes));
  struct Gradient {
    std::size_t result;
    std::int64_t rows, columns, depth;
    Factor left, right;
  };
  const Gradient gradients[] = {
      {0, a.queries, a.depth, a.keys, Factor::matrix(slope), head(a, a.key)},
      {1, a.keys, a.depth, a.queries, Factor::matrix(slope, true), head(a, a.query)},
      {2, a.keys, a.values, a.queries, Factor::matrix(weights, true), Factor::matrix(*grad)}};
  for (const Gradient& g : gradients) {
    if (!b.wants(g.result)) continue;
    Gemm product = product_of(a, g.rows, g.columns, g.depth, g.left, g.right);
    product.result = b.result(g.result);
    product.epilogue = [&](Draft& d, Expr x, const Indices& axes) -> Status {
      d.store(b.result(g.result), axes, x);
      return {};
    };
    BP_SDK_RETURN_IF_ERROR(add_gemm(b, product));
  }
  return {};
}

std::optional<sdk::Refusal> refuse_attention(const sdk::NodeView& node) {
  const bool backward = node.op().ends_with("backward");
  const std::size_t first = backward ? 1 : 0;
  if (node.real_or("dropout_p", 0) != 0)
    return refusal(BP_REFUSED_OP, "dropout draws random numbers");
  for (std::size_t i = first; i < first + 3; ++i) {
    if (node.operand(i).rank() != 4) return refusal(BP_REFUSED_SHAPE, "four dims only");
    if (!kernelgen::is_float(*storage_of(node.operand(i).dtype())))
      return refusal(BP_REFUSED_DTYPE, "floats only");
    if (node.operand(i).hint_elements() == 0)
      return refusal(BP_REFUSED_SHAPE, "nothing to attend to");
  }
  return std::nullopt;
}
std::optional<sdk::Refusal> refuse_shared_gradients(const Facts& facts, const sdk::NodeView& node) {
  const auto heads = node.operand(1).dims()[1], shared = node.operand(2).dims()[1];
  if (heads == shared || takes_shared_gradients(facts, node)) return std::nullopt;
  return refusal(BP_REFUSED_SHAPE, "gradients of shared heads");
}

constexpr KernelRow kRows[] = {
    {"aten._scaled_dot_product_flash_attention_for_cpu", flash, refuse_attention},
    {"aten.scaled_dot_product_attention", flash, refuse_attention},
    {"aten._scaled_dot_product_flash_attention_for_cpu_backward", flash_backward, refuse_attention,
     refuse_shared_gradients},
};

}  // namespace

std::span<const KernelRow> attention_kernels() { return kRows; }

}  // namespace backplane::kernels
