// Products of matrices and vectors, as ATen has them.
#include "gemm.hpp"
#include "point_group.hpp"
#include "products.hpp"
#include "registry.hpp"

namespace backplane::kernels {

Status finish_product(Builder& builder, Draft& draft, Expr value, const Indices& axes) {
  const auto& nodes = builder.step().step().nodes;
  if (nodes.size() == 1) {
    draft.store(builder.result(), axes, value);
    return {};
  }
  return emit_epilogue(builder, draft, std::span(nodes).subspan(1),
                       builder.step().node().result_index(), value, axes);
}

Factor factor_of_rows(const TensorView& t) {
  const std::size_t rank = t.dims.size();
  // Leading dims that lie in memory like one.
  std::int64_t stride = rank > 1 ? t.strides[rank - 2] : 0;
  std::int64_t expected = stride;
  bool plain = true;
  for (std::size_t d = rank - 1; d-- > 0;) {
    if (t.dims[d] == 1) continue;
    if (expected == stride && t.strides[d] != expected && d + 2 == rank) plain = false;
    if (t.strides[d] != expected) plain = false;
    expected = t.strides[d] * t.dims[d];
  }
  Factor f;
  if (plain) {
    TensorView flat = t;
    const std::int64_t columns = rank == 0 ? 1 : t.dims[rank - 1];
    flat.dims = {columns == 0 ? 0 : product(t.dims) / columns, columns};
    flat.strides = {stride, t.strides[rank - 1]};
    return Factor::matrix(flat);
  }
  f.element = [t, rank](Draft& d, std::span<const Expr>, Expr row, Expr column) {
    Indices index(rank);
    index[rank - 1] = column;
    for (std::size_t i = rank - 1; i-- > 0;) {
      index[i] = i == 0 ? row : d.e().binary(kernelgen::Op::kMod, row, d.index(t.dims[i]));
      row = d.e().div(row, d.index(t.dims[i]));
    }
    return d.load(t, index);
  };
  return f;
}

namespace {

using Term = std::function<Expr(Draft&, Expr value, const Indices& axes)>;

// An operand broadcast to the result. One that is a row becomes the bias of `gemm` (nullable), and
// the term is empty.
Result<Term> added_operand(Builder& b, std::size_t operand, Gemm* gemm = nullptr) {
  auto view = b.operand(operand);
  if (!view.ok()) return view.status();
  const bool blas = b.step().node().op() != "aten.linear";
  const double alpha = blas ? b.step().node().real_or("alpha", 1) : 1,
               beta = blas ? b.step().node().real_or("beta", 1) : 1;
  if (gemm != nullptr && alpha == 1 && beta == 1 && view->dims.size() == 1 &&
      view->dims[0] == gemm->columns) {
    gemm->bias = std::move(*view);
    return Term();
  }
  return Term([view = *view, alpha, beta](Draft& d, Expr value, const Indices& axes) {
    Expressions& e = d.e();
    const kernelgen::Type t = e.type(value);
    if (alpha != 1) value = e.mul(value, d.attribute("alpha", 1, t));
    if (beta == 0) return value;
    const Indices index(axes.end() - static_cast<std::ptrdiff_t>(view.dims.size()), axes.end());
    Expr term = e.cast(d.load(view, index), t);
    if (beta != 1) term = e.mul(term, d.attribute("beta", 1, t));
    return e.add(value, term);
  });
}
Status add_product(Builder& b, Gemm g, const Term& term) {
  if (!term && b.step().step().nodes.size() == 1) g.result = b.result();
  g.rounds = !term;
  g.epilogue = [&b, term](Draft& d, Expr value, const Indices& axes) -> Status {
    return finish_product(b, d, term ? term(d, value, axes) : value, axes);
  };
  return add_gemm(b, g);
}

// The right factor: an operand, or the panels of a packed weight.
Status read_right(Builder& b, Gemm& g, std::size_t operand, bool transposed) {
  auto panels = find_panels(b, operand);
  if (!panels.ok()) return panels.status();
  g.columns = b.step().value(b.step().node().result_index()).dims.back();
  if (*panels) {
    g.panels = (*panels)->view;
    g.b.batched.assign(g.batch.size(), false);
    g.b.element = [own = **panels](Draft& d, std::span<const Expr>, Expr row, Expr column) {
      return own.element(d, row, column);
    };
    return {};
  }
  auto right = b.operand(operand);
  if (!right.ok()) return right.status();
  g.b = Factor::matrix(*right, transposed);
  return {};
}

template <std::size_t kFirst>
Status build_product(Builder& b) {
  auto left = b.operand(kFirst);
  if (!left.ok()) return left.status();
  const std::size_t rank = left->dims.size();
  Gemm g;
  g.batch.assign(left->dims.begin(), left->dims.end() - 2);
  g.rows = {left->dims[rank - 2]};
  g.depth = left->dims[rank - 1];
  g.a = Factor::matrix(*left);
  BP_SDK_RETURN_IF_ERROR(read_right(b, g, kFirst + 1, false));
  Term term;
  if (kFirst == 1) {
    auto added = added_operand(b, 0, &g);
    if (!added.ok()) return added.status();
    term = *added;
  }
  return add_product(b, std::move(g), term);
}

Status build_linear(Builder& b) {
  auto input = b.operand(0);
  if (!input.ok()) return input.status();
  Gemm g;
  g.rows.assign(input->dims.begin(), input->dims.end() - 1);
  g.depth = input->dims.back();
  g.a = factor_of_rows(*input);
  BP_SDK_RETURN_IF_ERROR(read_right(b, g, 1, true));
  Term term;
  if (b.step().has_operand(2)) {
    auto added = added_operand(b, 2, &g);
    if (!added.ok()) return added.status();
    term = *added;
  }
  return add_product(b, std::move(g), term);
}

// Matrix and vector, vector and vector: the vector is a matrix of one column.
template <std::size_t kFirst>
Status build_vector_product(Builder& b) {
  auto left = b.operand(kFirst), right = b.operand(kFirst + 1);
  if (!left.ok()) return left.status();
  if (!right.ok()) return right.status();
  Draft d(b, b.result().dims, {right->dims[0]});
  Indices index = d.outer();
  index.push_back(d.loop()[0]);
  const kernelgen::Type t = kernelgen::compute_type(b.result().storage);
  Expr value = d.e().reduce(
      kernelgen::Reduction::kSum,
      d.e().mul(d.e().cast(d.load(*left, index), t), d.e().cast(d.load(*right, {d.loop()[0]}), t)));
  if (kFirst == 1) {
    auto added = added_operand(b, 0);
    if (!added.ok()) return added.status();
    value = (*added)(d, value, d.outer());
  }
  d.store(b.result(), d.outer(), value);
  return d.finish();
}

std::optional<sdk::Refusal> refuse_product(const sdk::NodeView& node) {
  if (node.op() == "aten.linear" && node.operand(1).rank() != 2)
    return refusal(BP_REFUSED_SHAPE, "linear needs a weight of two dims");
  const bp_dtype type = node.result().dtype();
  for (std::size_t i = 0; i < node.operand_count(); ++i)
    if (node.has_operand(i) && !(node.operand(i).dtype() == type))
      return refusal(BP_REFUSED_DTYPE, "products of operands of one type only");
  if (type == sdk::kBool) return refusal(BP_REFUSED_DTYPE, "no products of truth values");
  if (node.real_or("alpha", 1) == 0)
    return refusal(BP_REFUSED_ATTRIBUTE, "a product that is not read");
  return std::nullopt;
}

constexpr KernelRow kRows[] = {
    {"aten.mm", build_product<0>, refuse_product},
    {"aten.bmm", build_product<0>, refuse_product},
    {"aten.addmm", build_product<1>, refuse_product},
    {"aten.baddbmm", build_product<1>, refuse_product},
    {"aten.linear", build_linear, refuse_product},
    {"aten.mv", build_vector_product<0>, refuse_product},
    {"aten.dot", build_vector_product<0>, refuse_product},
    {"aten.vdot", build_vector_product<0>, refuse_product},
    {"aten.addmv", build_vector_product<1>, refuse_product},
};

}  // namespace

std::span<const KernelRow> matmul_kernels() { return kRows; }

bool takes_epilogue(const sdk::NodeView& node) {
  const std::string_view op = node.op();
  return op == "aten.mm" || op == "aten.bmm" || op == "aten.addmm" || op == "aten.baddbmm" ||
         op == "aten.linear" || op == "aten.convolution";
}

}  // namespace backplane::kernels
