#include "kernels/rows/program_kernel.h"

#include <backplane/sdk/points.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

namespace backplane::onednn {
namespace {

using sdk::StepContext;
using sdk::TensorSpec;

class ProgramKernel : public sdk::Kernel {
 public:
  ProgramKernel(RowProgram program, RowSpace space)
      : executor_(std::move(program), std::move(space)) {}
  sdk::Status run(const sdk::KernelCall& call) const override {
    executor_.run(call.operands, call.results, call.scratch);
    return {};
  }
  std::uint64_t scratch_bytes() const override { return executor_.scratch_bytes(); }

 private:
  RowExecutor executor_;
};

// Where the step's tensors lie in the space. `wide` are its sizes, `rows` the dims of a row.
class SpaceBuilder {
 public:
  SpaceBuilder(const StepContext& context, Shape wide, std::vector<std::size_t> rows)
      : context_(context), wide_(std::move(wide)), rows_(std::move(rows)) {}

  RowSpace build() {
    const auto& step = context_.step();
    for (const std::uint32_t v : step.operands) all_.push_back(strides_of(context_.value(v)));
    for (const std::uint32_t v : step.results) all_.push_back(strides_of(context_.value(v)));
    RowSpace space = rows_.empty() ? pointwise(step.operands.size()) : by_rows();
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const std::size_t operands = step.operands.size();
      const std::uint32_t value = i < operands ? step.operands[i] : step.results[i - operands];
      tensors_[i].empty = context_.value(value).elements() == 0;
      (i < operands ? space.operands : space.results).push_back(std::move(tensors_[i]));
    }
    return space;
  }

 private:
  // Strides over the wide dims; a value without the row dims is one value a row.
  Shape strides_of(const TensorSpec& spec) const {
    if (!rows_.empty() && spec.rank() + rows_.size() == wide_.size() && is_reduced(spec)) {
      Shape out(wide_.size(), 0);
      std::size_t from = 0;
      for (std::size_t d = 0; d < wide_.size(); ++d)
        if (!is_row(d)) out[d] = spec.dims[from] == 1 ? 0 : spec.strides[from], ++from;
      return out;
    }
    return broadcast_strides(spec, wide_);
  }
  bool is_reduced(const TensorSpec& spec) const {
    if (std::find_if(context_.step().results.begin(), context_.step().results.end(),
                     [&](std::uint32_t v) { return &context_.value(v) == &spec; }) ==
        context_.step().results.end())
      return false;  // operands broadcast from the right
    std::size_t from = 0;
    for (std::size_t d = 0; d < wide_.size(); ++d)
      if (!is_row(d) && spec.dims[from++] != wide_[d]) return false;
    return true;
  }
  bool is_row(std::size_t d) const {
    return std::find(rows_.begin(), rows_.end(), d) != rows_.end();
  }

  RowSpace pointwise(std::size_t first_result) {
    Walk walk(wide_, all_);
    walk.sort_by(first_result);
    RowSpace space;
    const std::size_t rank = walk.dims.size();
    if (rank >= 1) space.inner = walk.dims[rank - 1];
    if (rank >= 2) space.rows = walk.dims[rank - 2];
    if (rank >= 3) space.outer.assign(walk.dims.begin(), walk.dims.end() - 2);
    for (const Shape& s : walk.strides) {
      RowTensor t;
      if (rank >= 1) t.inner_stride = s[rank - 1];
      if (rank >= 2) t.row_stride = s[rank - 2];
      if (rank >= 3) t.outer.assign(s.begin(), s.end() - 2);
      tensors_.push_back(std::move(t));
    }
    return space;
  }

  RowSpace by_rows() {
    const auto part = [&](const Shape& of, bool rows) {
      Shape out;
      for (std::size_t d = 0; d < wide_.size(); ++d)
        if (is_row(d) == rows) out.push_back(of[d]);
      return out;
    };
    std::vector<Shape> inner, outer;
    for (const Shape& s : all_) {
      inner.push_back(part(s, true));
      outer.push_back(part(s, false));
    }
    Walk rows(part(wide_, true), inner), rest(part(wide_, false), outer);
    rows.merge();
    rest.merge();
    RowSpace space;
    space.whole_rows = true;
    space.outer = rest.dims;
    space.inner = product(rows.dims);
    const bool has_rest = !rest.dims.empty();
    if (has_rest) {
      space.rows = space.outer.back();
      space.outer.pop_back();
    }
    for (std::size_t i = 0; i < all_.size(); ++i) {
      RowTensor t;
      t.outer = rest.strides[i];
      if (has_rest) {
        t.row_stride = t.outer.back();
        t.outer.pop_back();
      }
      if (rows.dims.size() == 1) {
        t.inner_stride = rows.strides[i][0];
      } else if (rows.dims.size() > 1) {
        t.offsets = offsets(rows, i);
      }
      tensors_.push_back(std::move(t));
    }
    return space;
  }
  // Empty where all are zero: the tensor is one value a row.
  static Shape offsets(const Walk& rows, std::size_t i) {
    const Shape& s = rows.strides[i];
    if (std::all_of(s.begin(), s.end(), [](auto v) { return v == 0; })) return {};
    Shape out;
    out.reserve(static_cast<std::size_t>(product(rows.dims)));
    Walk one(rows.dims, {s});
    RowCursor<1> cursor(one, 0);
    for (std::int64_t r = 0; r < one.rows(); ++r, cursor.next())
      for (std::int64_t k = 0; k < one.inner(); ++k)
        out.push_back(cursor.offset(0) + k * one.inner_stride(0));
    return out;
  }

  const StepContext& context_;
  Shape wide_;
  std::vector<std::size_t> rows_;
  std::vector<Shape> all_;
  std::vector<RowTensor> tensors_;
};

class StepScope : public ProgramScope {
 public:
  StepScope(const StepContext& context, RowProgram& program, const RowSpace& space)
      : context_(context),
        program_(program),
        space_(space),
        rounded_(sdk::rounded_values(context.graph(), context.step())) {}

  void define(std::uint32_t value, Register r) {
    made_[value] = r;
    known_[{value, program_.info(r).domain, false}] = r;
  }
  // As its node made it, whatever it was converted to for those that read it.
  Register produced(std::uint32_t value) const {
    const auto found = made_.find(value);
    return found == made_.end() ? kNoRegister : found->second;
  }

  Register read(std::uint32_t value, Domain domain) override {
    const bool rounds = rounded_.contains(value);
    const auto known = known_.find({value, domain, rounds});
    if (known != known_.end()) return known->second;
    Register r;
    if (const auto i = context_.find_position(value)) {
      r = program_.load(static_cast<std::uint32_t>(*i), type(value), domain, narrow(*i));
    } else {
      r = produced(value);
      if (rounds)
        r = program_.apply(type(value) == Type::kBF16 ? Opcode::kToBF16 : Opcode::kToF16, r);
      r = program_.convert(r, domain);
    }
    known_[{value, domain, rounds}] = r;
    return r;
  }
  Type type(std::uint32_t value) const override { return known_type(context_.value(value).dtype); }
  bool zero_dim(std::uint32_t value) const override { return context_.value(value).rank() == 0; }

 private:
  bool narrow(std::size_t operand) const {
    const RowTensor& t = space_.operands[operand];
    if (t.inner_stride != 0 || !t.offsets.empty()) return false;
    return space_.whole_rows || (t.row_stride == 0 && context_.operand(operand).elements() == 1);
  }

  const StepContext& context_;
  RowProgram& program_;
  const RowSpace& space_;
  std::set<std::uint32_t> rounded_;
  std::map<std::uint32_t, Register> made_;
  std::map<std::tuple<std::uint32_t, Domain, bool>, Register> known_;  // third: rounded
};

}  // namespace

sdk::Result<std::unique_ptr<sdk::Kernel>> make_program_kernel(const StepContext& context) {
  const auto& graph = context.graph();
  std::vector<std::size_t> rows;
  Shape wide;
  bool has_rows = false;
  for (const std::uint32_t n : context.step().nodes) {
    const sdk::NodeView node = graph[n];
    const ProgramOp* op = find_program_op(node.op());
    if (op->kind == ProgramOp::kRow) {
      rows = row_dims(node);
      wide = context.value(node.operand_index(0)).dims;
      has_rows = true;
      break;
    }
    const Shape& dims = context.value(node.result_index(0)).dims;
    if (wide.empty() || dims.size() > wide.size() || product(dims) > product(wide)) wide = dims;
  }
  // A step that nobody reads has no results; only graphs that no pass has seen have one.
  if (!has_rows && !context.step().results.empty()) wide = context.result(0).dims;

  RowSpace space = SpaceBuilder(context, wide, rows).build();
  // A reduction of a 0-d value: a row of one element.
  if (has_rows) space.whole_rows = true;
  RowProgram program;
  StepScope scope(context, program, space);
  for (const std::uint32_t n : context.step().nodes) {
    const sdk::NodeView node = graph[n];
    const ProgramOp* op = find_program_op(node.op());
    Emitter emitter(program, node, context.dims(), scope, space.inner);
    const std::vector<Register> made = op->emit(emitter);
    for (std::size_t r = 0; r < made.size() && r < node.result_count(); ++r)
      if (node.result_index(r) != BP_NONE) scope.define(node.result_index(r), made[r]);
  }
  for (std::size_t i = 0; i < context.step().results.size(); ++i) {
    const std::uint32_t value = context.step().results[i];
    Register r = scope.produced(value);
    if (r == kNoRegister) throw std::logic_error("a step result that no node of it makes");
    RowTensor& t = space.results[i];
    const bool narrow_result = space.whole_rows && t.inner_stride == 0 && t.offsets.empty();
    if (!narrow_result) r = program.widen(r);
    program.store(r, static_cast<std::uint32_t>(i), known_type(context.value(value).dtype));
  }
  return std::unique_ptr<sdk::Kernel>(
      std::make_unique<ProgramKernel>(std::move(program), std::move(space)));
}

}  // namespace backplane::onednn
