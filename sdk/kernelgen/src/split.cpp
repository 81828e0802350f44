#include <backplane/kernelgen/split.hpp>

#include <algorithm>
#include <functional>

#include "group_plan.hpp"

namespace backplane::kernelgen {
namespace {

// By expression: how many reductions stand under it, itself included; whether it changes inside the
// loops; whether a store needs it.
struct Analysis {
  explicit Analysis(const Kernel& kernel) {
    const Expressions& e = kernel.expressions;
    depth.assign(e.size(), 0);
    in_loops.assign(e.size(), false);
    needed.assign(e.size(), false);
    for (std::size_t i = 0; i < e.size(); ++i) {
      const Node& n = e.node(static_cast<Expr>(i));
      if (n.op == Op::kAxis) in_loops[i] = static_cast<std::size_t>(n.index) >= kernel.outer_count;
      for (const Expr operand : {n.a, n.b, n.c}) {
        if (operand == kNoExpr) continue;
        const auto o = static_cast<std::size_t>(operand);
        depth[i] = std::max(depth[i], depth[o]);
        in_loops[i] = in_loops[i] || in_loops[o];
      }
      if (n.op == Op::kReduce) {
        in_loops[i] = false;
        ++depth[i];
      }
    }
    for (const Store& s : kernel.stores)
      needed[static_cast<std::size_t>(s.offset)] = needed[static_cast<std::size_t>(s.value)] = true;
    for (std::size_t i = e.size(); i-- > 0;) {
      if (!needed[i]) continue;
      const Node& n = e.node(static_cast<Expr>(i));
      for (const Expr operand : {n.a, n.b, n.c})
        if (operand != kNoExpr) needed[static_cast<std::size_t>(operand)] = true;
    }
  }
  std::vector<std::int32_t> depth;
  std::vector<bool> in_loops, needed;
};

// Expressions of one kernel in another, whose axes are `shift` further on.
class Copier {
 public:
  Copier(const Expressions& from, Expressions& to, std::int32_t shift,
         std::function<Expr(Expr)> replace)
      : from_(from), to_(to), shift_(shift), replace_(std::move(replace)) {
    known_.assign(from.size(), kNoExpr);
  }
  Expr operator()(Expr e) {
    if (e == kNoExpr) return e;
    Expr& known = known_[static_cast<std::size_t>(e)];
    if (known != kNoExpr) return known;
    if (const Expr other = replace_(e); other != kNoExpr) return known = other;
    Node n = from_.node(e);
    n.a = (*this)(n.a);
    n.b = (*this)(n.b);
    n.c = (*this)(n.c);
    if (n.op == Op::kAxis) n.index += shift_;
    return known = to_.copy(n);
  }

 private:
  const Expressions& from_;
  Expressions& to_;
  std::int32_t shift_;
  std::function<Expr(Expr)> replace_;
  std::vector<Expr> known_;
};

std::optional<Storage> storage_of(Type type) {
  switch (type) {
    case Type::kF32:
      return Storage::kF32;
    case Type::kF64:
      return Storage::kF64;
    case Type::kI32:
      return Storage::kI32;
    case Type::kI64:
      return Storage::kI64;
    default:
      return std::nullopt;
  }
}

class Splitter {
 public:
  Splitter(const Kernel& kernel, std::int64_t slices)
      : kernel_(kernel),
        e_(kernel.expressions),
        is_(kernel),
        slices_(slices),
        points_(product(e_.extents().subspan(0, kernel.outer_count))) {}

  std::optional<SplitKernel> run() {
    std::int32_t deepest = 0;
    for (std::size_t i = 0; i < e_.size(); ++i) {
      const Node& n = e_.node(static_cast<Expr>(i));
      if (n.op != Op::kReduce || !is_.needed[i]) continue;
      const auto storage = storage_of(n.type);
      if (!storage) return std::nullopt;
      deepest = std::max(deepest, is_.depth[i]);
      parts_.push_back(
          {static_cast<Expr>(i), is_.depth[i], *storage, add(*storage, slices_ * points_), 0});
    }
    for (Part& part : parts_)
      if (part.depth < deepest) part.whole = add(part.storage, points_);
    for (std::int32_t depth = 1; depth <= deepest; ++depth) {
      reduce_slices(depth);
      if (depth < deepest) join_slices(depth);
    }
    Kernel last = begin_join();
    Expressions& e = last.expressions;
    Copier copy(e_, e, 0, [&](Expr r) {
      const Part* part = find(r);
      if (part == nullptr) return kNoExpr;
      return part->depth < deepest ? e.load(part->whole, part->storage, flat(e, 0))
                                   : joined(e, *part);
    });
    for (const Store& s : kernel_.stores)
      last.stores.push_back({s.tensor, s.storage, copy(s.offset), copy(s.value), s.mode});
    out_.kernels.push_back(std::move(last));
    for (Kernel& k : out_.kernels) {
      k.tensors = kernel_.tensors;
      for (const auto& scratch : out_.scratch) k.tensors.push_back(scratch.storage);
      k.values = kernel_.values;
    }
    return std::move(out_);
  }

 private:
  struct Part {
    Expr reduction;
    std::int32_t depth;
    Storage storage;
    std::size_t slices, whole;  // tensors
  };

  std::size_t add(Storage storage, std::int64_t elements) {
    out_.scratch.push_back({storage, elements});
    return kernel_.tensors.size() + out_.scratch.size() - 1;
  }
  const Part* find(Expr r) const {
    const auto found =
        std::ranges::find_if(parts_, [&](const Part& part) { return part.reduction == r; });
    return found == parts_.end() ? nullptr : &*found;
  }
  // The point's place; its outer axes begin at `first`.
  Expr flat(Expressions& e, std::size_t first) const {
    Expr at = e.index(0);
    for (std::size_t a = 0; a < kernel_.outer_count; ++a)
      at = e.add(e.mul(at, e.index(e_.extents()[a])), e.axis(first + a));
    return at;
  }
  bool is_wide() const { return e_.index_type() == Type::kI64; }

  void reduce_slices(std::int32_t depth) {
    Kernel k;
    k.outer_count = kernel_.outer_count + 1;
    k.sliced = true;
    std::vector<std::int64_t> extents = {slices_};
    extents.insert(extents.end(), e_.extents().begin(), e_.extents().end());
    Expressions& e = k.expressions = Expressions(std::move(extents), is_wide());
    Copier copy(e_, e, 1, [&](Expr r) {
      const Part* part = find(r);
      return part != nullptr && part->depth < depth ? e.load(part->whole, part->storage, flat(e, 1))
                                                    : kNoExpr;
    });
    const Expr place = e.add(e.mul(e.axis(0), e.index(points_)), flat(e, 1));
    for (const Part& part : parts_)
      if (part.depth == depth)
        k.stores.push_back({part.slices, part.storage, place, copy(part.reduction)});
    out_.kernels.push_back(std::move(k));
  }
  Kernel begin_join() const {
    Kernel k;
    k.outer_count = kernel_.outer_count;
    std::vector<std::int64_t> extents(
        e_.extents().begin(), e_.extents().begin() + static_cast<std::ptrdiff_t>(k.outer_count));
    extents.push_back(slices_);
    k.expressions = Expressions(std::move(extents), is_wide());
    return k;
  }
  Expr joined(Expressions& e, const Part& part) const {
    const Expr at = e.add(e.mul(e.axis(kernel_.outer_count), e.index(points_)), flat(e, 0));
    return e.reduce(static_cast<Reduction>(e_.node(part.reduction).index),
                    e.load(part.slices, part.storage, at));
  }
  void join_slices(std::int32_t depth) {
    Kernel k = begin_join();
    Expressions& e = k.expressions;
    for (const Part& part : parts_)
      if (part.depth == depth)
        k.stores.push_back({part.whole, part.storage, flat(e, 0), joined(e, part)});
    out_.kernels.push_back(std::move(k));
  }

  const Kernel& kernel_;
  const Expressions& e_;
  Analysis is_;
  std::int64_t slices_, points_;
  std::vector<Part> parts_;
  SplitKernel out_;
};

}  // namespace

std::optional<SplitKernel> split_reductions(const Kernel& kernel, Dialect dialect,
                                            const Schedule& schedule) {
  // A launch more is worth it from so many elements on; groups that keep a device busy; steps of a
  // work-item through a slice.
  constexpr std::int64_t kLeastElements = 1 << 18, kGroups = 1024, kSteps = 16;
  const auto extents = kernel.expressions.extents();
  if (!schedule.gpu || extents.size() == kernel.outer_count) return std::nullopt;
  const std::int64_t row = product(extents.subspan(kernel.outer_count));
  if (product(extents) < kLeastElements) return std::nullopt;
  const Analysis is(kernel);
  bool reduces = false;
  for (const Store& s : kernel.stores) {
    const auto value = static_cast<std::size_t>(s.value);
    if (s.mode != Store::kPlain || is.in_loops[value] ||
        is.in_loops[static_cast<std::size_t>(s.offset)])
      return std::nullopt;
    reduces = reduces || is.depth[value] > 0;
  }
  if (!reduces) return std::nullopt;
  const auto plan = plan_group(kernel, dialect, schedule, 0);
  if (!plan) return std::nullopt;
  const std::int64_t groups = group_count(kernel, *plan),
                     sharers = plan->columns      ? plan->group / plan->items
                               : plan->items != 0 ? plan->items
                                                  : plan->group,
                     steps = plan->columns ? row : row / plan->chunk;
  const std::int64_t slices = std::min((kGroups + groups - 1) / groups, steps / (sharers * kSteps));
  if (groups > kGroups / 4 || slices < 2) return std::nullopt;
  return Splitter(kernel, slices).run();
}

}  // namespace backplane::kernelgen
