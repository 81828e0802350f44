#include "kernels/primitives/matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/movement/strided_copy.h"
#include "kernels/primitives/bounds.h"
#include "kernels/primitives/upcast.h"
#include "kernels/simd/instruction_set.h"
#include "packing.h"

namespace backplane::onednn {
namespace {

using sdk::NodeView;
using sdk::StepContext;
using sdk::TensorSpec;
using Arguments = std::vector<Runnable::Argument>;

using Roles = MatmulRoles;

std::optional<Roles> roles_of(std::string_view op) {
  if (op == "aten.linear") return Roles{0, 1, 2, true};
  if (op == "aten.mm" || op == "aten.bmm" || op == "aten.mv" || op == "aten.dot") return Roles{};
  if (op == "aten.addmm" || op == "aten.baddbmm" || op == "aten.addmv")
    return Roles{1, 2, 0, false};
  return std::nullopt;
}

struct Matrix {
  Shape dims, strides;
};
Matrix matrix(const TensorSpec& spec) { return {spec.dims, spec.strides}; }

// Leading dims of a and c as one, where both allow it; b is then a plain matrix.
bool merge_leading(Matrix& a, Matrix& c) {
  if (a.dims.size() < 2) return false;
  const auto lead = [](const Matrix& m) {
    return Walk({m.dims.begin(), m.dims.end() - 1}, {{m.strides.begin(), m.strides.end() - 1}});
  };
  Walk wa = lead(a), wc = lead(c);
  wa.merge();
  wc.merge();
  if (wa.dims.size() > 1 || wc.dims.size() > 1) return false;
  const auto flatten = [](Matrix& m, const Walk& w) {
    const std::int64_t k = m.dims.back(), step = m.strides.back();
    m.dims = {w.inner(), k};
    m.strides = {w.dims.empty() ? std::max<std::int64_t>(k, 1) : w.inner_stride(0), step};
  };
  flatten(a, wa);
  flatten(c, wc);
  return true;
}

// oneDNN wants a dense dim and rows that do not overlap.
bool usable(const Matrix& m) {
  const std::size_t r = m.dims.size();
  const std::int64_t rows = m.dims[r - 2], columns = m.dims[r - 1];
  const std::int64_t row = m.strides[r - 2], column = m.strides[r - 1];
  if (!is_describable(m.dims, m.strides)) return false;
  return (column == 1 && (rows == 1 || row >= columns)) ||
         (row == 1 && (columns == 1 || column >= rows)) || (rows == 1 && columns == 1);
}
// Strides of dims of size 1 may be anything; oneDNN takes them at their word.
void tidy(Matrix& m) {
  const std::size_t r = m.dims.size();
  std::int64_t span = 1;
  for (std::size_t d = 0; d < r; ++d)
    if (m.dims[d] > 1) span = std::max(span, m.dims[d] * m.strides[d]);
  if (m.dims[r - 1] == 1 && m.dims[r - 2] == 1) {
    m.strides[r - 1] = m.strides[r - 2] = 1;
  } else if (m.dims[r - 1] == 1) {
    m.strides[r - 1] = 1;  // by rows: of columns oneDNN has plain loops alone
  } else if (m.dims[r - 2] == 1) {
    m.strides[r - 2] = m.strides[r - 1] == 1 ? m.dims[r - 1] : 1;
  }
  for (std::size_t d = 0; d + 2 < r; ++d)
    if (m.dims[d] == 1) m.strides[d] = span;
}

class MatmulKernel : public sdk::Kernel {
 public:
  // Where an argument comes from.
  struct Source {
    enum Kind : std::uint8_t { kOperand, kResult, kScratch, kCopy } kind;
    std::size_t index;     // operand; copy
    std::uint64_t offset;  // in the scratch
  };
  struct Copy {
    StridedCopy copy;
    std::size_t operand;
    std::uint64_t offset;
  };

  Runnable runnable;
  std::vector<Source> sources;
  std::vector<Copy> copies;
  ResultBounds bounds;
  std::uint64_t zero_bytes = 0;  // at the start of the scratch
  std::uint64_t scratch = 0;

  sdk::Status run(const sdk::KernelCall& call) const override {
    if (zero_bytes != 0) std::memset(call.scratch, 0, zero_bytes);
    for (const Copy& c : copies) c.copy.run(call.scratch + c.offset, call.operands[c.operand]);
    std::array<void*, 24> pointers;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const Source& s = sources[i];
      switch (s.kind) {
        case Source::kOperand:
          pointers[i] = call.operands[s.index];
          break;
        case Source::kResult:
          pointers[i] = call.results[0];
          break;
        default:
          pointers[i] = call.scratch + s.offset;
          break;
      }
    }
    runnable.run({pointers.data(), sources.size()});
    bounds.run(call.results[0]);
    return {};
  }
  std::uint64_t scratch_bytes() const override { return scratch; }
};

class NothingKernel : public sdk::Kernel {
 public:
  sdk::Status run(const sdk::KernelCall&) const override { return {}; }
};

class Builder {
 public:
  Builder(const StepContext& context, std::uint32_t packed)
      : context_(context), node_(context.node()), roles_(*roles_of(node_.op())), packed_(packed) {}

  std::unique_ptr<sdk::Kernel> build() {
    const TensorSpec& out = context_.value(node_.result_index());
    type_ = known_type(out.dtype);
    Matrix a = matrix(context_.value(node_.operand_index(roles_.left))), c = matrix(out), b;
    const bool is_packed = packed_ != BP_NONE;
    if (!is_packed) b = matrix(context_.value(node_.operand_index(roles_.right)));
    shape(a, b, c);
    if (out.elements() == 0) return std::make_unique<NothingKernel>();
    const bool is_empty_sum = a.dims.back() == 0;
    if (is_empty_sum) add_zeros(a, b);

    const auto attr_operands = attributes(out, c);
    dnnl::memory::desc b_desc;
    tidy(a);
    tidy(c);
    const MatmulKernel::Source zeros{MatmulKernel::Source::kScratch, 0, 0};
    auto left = is_empty_sum ? zeros : operand(a, roles_.left);
    MatmulKernel::Source right{};
    if (is_empty_sum) {
      right = zeros;
      b_desc = dnnl_desc(type_, b.dims, b.strides);
    } else if (is_packed) {
      const TensorSpec& w = context_.value(packed_);
      const auto layout = parse_layout_id(w.layout.layout_id);
      if (!layout) throw std::invalid_argument("a weight in an unknown layout");
      b_desc = packed_desc(*layout, type_, w.dims);
      if (c.dims.size() > 2) throw std::logic_error("a packed weight of a batched product");
      right = {MatmulKernel::Source::kOperand, context_.position(packed_), 0};
    } else {
      tidy(b);
      right = operand(b, roles_.right);
      b_desc = dnnl_desc(type_, b.dims, b.strides);
    }
    auto a_desc = dnnl_desc(type_, a.dims, a.strides);
    const auto c_desc = dnnl_desc(type_, c.dims, c.strides);
    const auto choose = [&] {
      return bias_.is_zero()
                 ? dnnl::matmul::primitive_desc(engine(), a_desc, b_desc, c_desc, attr_)
                 : dnnl::matmul::primitive_desc(engine(), a_desc, b_desc, bias_, c_desc, attr_);
    };
    auto pd = choose();
    if (needs_copy(pd, a) && left.kind == MatmulKernel::Source::kOperand &&
        a.strides != sdk::row_major(a.dims)) {
      left = operand(a, roles_.left, /*dense=*/true);
      a_desc = dnnl_desc(type_, a.dims, a.strides);
      pd = choose();
    }
    if (pairs_last(pd, a) && right.kind == MatmulKernel::Source::kOperand && !is_packed &&
        b.strides != sdk::row_major(b.dims)) {
      right = operand(b, roles_.right, /*dense=*/true);
      b_desc = dnnl_desc(type_, b.dims, b.strides);
      pd = choose();
    }
    add(DNNL_ARG_SRC, a_desc, left);
    add(DNNL_ARG_WEIGHTS, b_desc, right);
    add(DNNL_ARG_DST, c_desc, {MatmulKernel::Source::kResult, 0, 0});
    if (!bias_.is_zero())
      add(DNNL_ARG_BIAS, bias_,
          {MatmulKernel::Source::kOperand, context_.position(node_.operand_index(roles_.added)),
           0});
    for (const PostOpOperand& p : attr_operands) {
      const bool copied = added_copy_ && p.index == added_index_;
      add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(p.index) | DNNL_ARG_SRC_1, p.desc,
          copied ? *added_copy_
                 : MatmulKernel::Source{MatmulKernel::Source::kOperand, context_.position(p.value),
                                        0});
    }
    const std::uint64_t pad = pd.scratchpad_desc().get_size();
    add(DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(),
        {MatmulKernel::Source::kScratch, 0, kernel_->scratch});
    kernel_->scratch += aligned_bytes(pad);
    kernel_->runnable = Runnable(dnnl::matmul(pd), std::move(arguments_));
    return std::move(kernel_);
  }

 private:
  // A kernel of oneDNN that takes bfloat16 in pairs, and the last of an odd number with itself,
  // times zero: NaN of an infinity.
  bool pairs_last(const dnnl::matmul::primitive_desc& chosen, const Matrix& a) const {
    return type_ == Type::kBF16 && a.dims.back() % 2 != 0 &&
           std::string_view(chosen.impl_info_str()).starts_with("gemm");
  }
  // Rows far apart get oneDNN's plain loops: a copy of them costs less.
  bool needs_copy(const dnnl::matmul::primitive_desc& chosen, const Matrix& a) const {
    return std::string_view(chosen.impl_info_str()).starts_with("ref") || pairs_last(chosen, a);
  }

  // A sum over no elements, as a sum over one zero: oneDNN has no other, and bias and post-ops
  // apply as ever. Both operands read the same zeros.
  void add_zeros(Matrix& a, Matrix& b) {
    a.dims.back() = 1;
    b.dims[b.dims.size() - 2] = 1;
    for (Matrix* m : {&a, &b}) {
      m->strides = sdk::row_major(m->dims);
      kernel_->zero_bytes = std::max(
          kernel_->zero_bytes, static_cast<std::uint64_t>(product(m->dims) * bytes_of(type_)));
    }
    kernel_->scratch = aligned_bytes(kernel_->zero_bytes);
  }

  // All three as matrices of equal rank.
  void shape(Matrix& a, Matrix& b, Matrix& c) {
    const std::string_view op = node_.op();
    const auto append = [](Matrix& m) {
      m.dims.push_back(1);
      m.strides.push_back(1);
    };
    const auto prepend = [](Matrix& m) {
      m.dims.insert(m.dims.begin(), 1);
      m.strides.insert(m.strides.begin(), 1);
    };
    if (op == "aten.dot") {
      prepend(a);
      append(b);
      c = {{1, 1}, {1, 1}};
    } else if (op == "aten.mv" || op == "aten.addmv") {
      append(b);
      append(c);
    } else if (op == "aten.linear") {
      if (packed_ == BP_NONE) {
        std::swap(b.dims[0], b.dims[1]);
        std::swap(b.strides[0], b.strides[1]);
      }
      if (a.dims.size() == 1) {
        prepend(a);
        prepend(c);
      } else if (a.dims.size() > 2 && !merge_leading(a, c)) {
        copy_left_ = true;
        a.strides = sdk::row_major(a.dims);
        Matrix flat = a;
        if (!merge_leading(a, c)) {  // the result has gaps as well: one batch dim each
          a = flat;
          while (packed_ == BP_NONE && b.dims.size() < a.dims.size()) prepend(b);
        }
      }
    }
  }

  // Bias and the matrix of addmm, then the step's own post-ops.
  std::vector<PostOpOperand> attributes(const TensorSpec& out, const Matrix& c) {
    std::vector<PostOpOperand> operands;
    dnnl::post_ops ops;
    const double alpha = node_.real_or("alpha", 1), beta = node_.real_or("beta", 1);
    const bool has_added = roles_.added != SIZE_MAX && node_.has_operand(roles_.added) && beta != 0;
    const auto out_desc = dnnl_desc(type_, c.dims, c.strides);
    if (has_added) {
      const TensorSpec& added = context_.value(node_.operand_index(roles_.added));
      Shape strides = broadcast_strides(added, out.dims);
      const std::int64_t n = c.dims.back();
      const bool row = n > 0 && added.elements() == n && added.rank() > 0 &&
                       added.dims.back() == n && (n == 1 || added.strides.back() == 1) &&
                       node_.op() != "aten.addmv";
      if (row && alpha == 1 && beta == 1) {
        Shape dims(c.dims.size(), 1);
        dims.back() = n;
        bias_ = dnnl_desc(type_, dims, sdk::row_major(dims));
      } else {
        if (alpha != beta)
          ops.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(alpha / beta), 0);
        Shape dims = added.dims;
        dims.insert(dims.begin(), out.dims.size() - added.rank(), 1);
        if (c.dims.size() > out.dims.size()) {
          // A row of linear's, a column of addmv's.
          const bool row_first = roles_.right_transposed;
          dims.insert(row_first ? dims.begin() : dims.end(), 1);
          strides.insert(row_first ? strides.begin() : strides.end(), 0);
        }
        // A bias beside leading dims that became one.
        const auto extra = static_cast<std::ptrdiff_t>(dims.size() - c.dims.size());
        dims.erase(dims.begin(), dims.begin() + extra);
        strides.erase(strides.begin(), strides.begin() + extra);
        // One element is broadcast, and counts as dense.
        for (std::size_t d = dims.size(); d-- > 0;) {
          if (strides[d] != 0) continue;
          dims[d] = 1;
          strides[d] =
              d + 1 < dims.size() ? std::max<std::int64_t>(1, strides[d + 1] * dims[d + 1]) : 1;
        }
        // Kernels step through what they add as through the result, or densely.
        if ((dims != c.dims || strides != c.strides) && strides != sdk::row_major(dims)) {
          added_index_ = ops.len();
          added_copy_ =
              dense_copy(context_.position(node_.operand_index(roles_.added)), dims, strides);
          strides = sdk::row_major(dims);
        }
        const auto desc = dnnl_desc(type_, dims, strides);
        operands.push_back({node_.operand_index(roles_.added), desc, ops.len()});
        ops.append_binary(dnnl::algorithm::binary_add, desc);
        if (beta != 1)
          ops.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(beta), 0);
      }
    } else if (alpha != 1) {
      ops.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(alpha), 0);
    }
    append_post_ops(context_, 1, node_.result_index(), out_desc, ops, operands);
    kernel_->bounds = ResultBounds(context_);
    attr_ = user_scratchpad();
    attr_.set_post_ops(ops);
    return operands;
  }

  // The operand where it lies, or a dense copy of it.
  MatmulKernel::Source operand(Matrix& m, std::size_t which, bool dense = false) {
    const std::size_t at = context_.position(node_.operand_index(which));
    const bool copied = which == roles_.left && copy_left_;
    if (!copied && !dense && usable(m)) return {MatmulKernel::Source::kOperand, at, 0};
    const TensorSpec& spec = context_.value(node_.operand_index(which));
    const Shape from = copied ? broadcast_strides(spec, spec.dims) : m.strides;
    const Shape& dims = copied ? spec.dims : m.dims;
    if (!copied) m.strides = sdk::row_major(m.dims);
    return dense_copy(at, dims, from);
  }
  MatmulKernel::Source dense_copy(std::size_t operand, const Shape& dims, const Shape& strides) {
    const std::uint64_t offset = kernel_->scratch;
    kernel_->copies.push_back(
        {StridedCopy(dims, sdk::row_major(dims), strides, bytes_of(type_)), operand, offset});
    kernel_->scratch += aligned_bytes(static_cast<std::uint64_t>(product(dims) * bytes_of(type_)));
    return {MatmulKernel::Source::kScratch, 0, offset};
  }

  void add(int id, const dnnl::memory::desc& desc, MatmulKernel::Source source) {
    arguments_.push_back({id, desc});
    kernel_->sources.push_back(source);
  }

  const StepContext& context_;
  NodeView node_;
  Roles roles_;
  std::uint32_t packed_;
  Type type_ = Type::kF32;
  bool copy_left_ = false;
  std::optional<MatmulKernel::Source> added_copy_;  // of the matrix of post-op added_index_
  int added_index_ = 0;
  dnnl::memory::desc bias_;
  dnnl::primitive_attr attr_;
  Arguments arguments_;
  std::unique_ptr<MatmulKernel> kernel_ = std::make_unique<MatmulKernel>();
};

}  // namespace

bool is_matmul_op(std::string_view op) { return roles_of(op).has_value(); }

sdk::Result<std::unique_ptr<sdk::Kernel>> make_matmul_kernel(const StepContext& context,
                                                             std::uint32_t packed) {
  const Type type = known_type(context.result().dtype);
  if (type != Type::kF32 && type != Type::kBF16)
    return make_plain_matmul_kernel(context, *roles_of(context.node().op()));
  if (type == Type::kBF16 && !has_bfloat16())
    return make_upcast_kernel(
        context, [&](const StepContext& wide) { return make_matmul_kernel(wide, packed); });
  return Builder(context, packed).build();
}

std::uint64_t choose_matmul_layout(const NodeView& node, const sdk::ValueView& weight,
                                   bool transposed) {
  const auto roles = roles_of(node.op());
  const Type type = known_type(weight.dtype());
  const Shape w = weight.hint_dims();
  const std::int64_t n = transposed ? w[0] : w[1], k = transposed ? w[1] : w[0];
  if (n < 2 || k < 2 || (type != Type::kF32 && (type != Type::kBF16 || !has_bfloat16()))) return 0;
  const Shape left = node.operand(roles->left).hint_dims();
  const std::int64_t m = std::max<std::int64_t>(product(left) / std::max<std::int64_t>(k, 1), 1);
  const Shape a{m, k}, c{m, n};
  const dnnl::matmul::primitive_desc pd(engine(), dnnl_desc(type, a, sdk::row_major(a)),
                                        any_desc(type, {k, n}),
                                        dnnl_desc(type, c, sdk::row_major(c)));
  const auto tag = find_tag(pd.weights_desc());
  if (tag == dnnl::memory::format_tag::undef || tag == dnnl::memory::format_tag::ab ||
      tag == dnnl::memory::format_tag::ba)
    return 0;
  return layout_id({transposed ? WeightKind::kLinear : WeightKind::kMatrix, 1, tag});
}

}  // namespace backplane::onednn
