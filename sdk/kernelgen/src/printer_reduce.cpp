// Reductions as text.
#include "functions.hpp"
#include "printer.hpp"
#include "printer_names.hpp"

namespace backplane::kernelgen {
namespace {

constexpr std::int64_t kCopies = 4;      // of a reduction's vector, side by side
constexpr std::int64_t kLongSum = 4096;  // elements
constexpr std::int64_t kShortSum = 64;

std::string lost(const std::string& sum) { return "lost_" + sum; }

}  // namespace

std::string PointPrinter::partial(Expr r, std::int64_t copy) {
  return variable("q", r) + (copy == 0 ? "" : "_part" + number(copy));
}
std::string PointPrinter::blocks(Expr r) { return "blocks_" + variable("q", r); }

// Long sums carry what an addition loses (Kahan): what is left of them may be small beside what
// goes in, as in gradients of biases. Along vectors whole blocks are added so, else each point.
bool PointPrinter::is_compensated(Expr r) const {
  const Node& n = e_.node(r);
  if (static_cast<Reduction>(n.index) != Reduction::kSum || e_.type(n.a) != Type::kF32)
    return false;
  std::int64_t points = 1;
  for (std::size_t a = kernel_.outer_count; a < e_.extents().size(); ++a) points *= e_.extents()[a];
  // What work-items of a group add up before they join it.
  return points >= kLongSum && (!grouped_ || points > kShortSum * sharers());
}

void PointPrinter::add_compensated(const std::string& sum, const std::string& value, bool vector) {
  const std::string zero = vector ? splat(Type::kF32, "0.0f") : "0.0f",
                    rest = "(sum - " + sum + ") - add";
  // Nothing is lost of what is not finite.
  line("{ const " + type_name(Type::kF32, vector ? lanes_ : 1) + " add = " + value + " - " +
       lost(sum) + ", sum = " + sum + " + add; " + lost(sum) + " = " +
       (vector ? "select(" + zero + ", " + rest + ", sum - sum == " + zero + ")"
               : "sum - sum == " + zero + " ? " + rest + " : " + zero) +
       "; " + sum + " = sum; }");
}

void PointPrinter::declare(Expr r, bool wide, std::int64_t copies) {
  const Node& n = e_.node(r);
  const auto how = static_cast<Reduction>(n.index);
  const bool lanes = lanes_in_loop(), vector = wide && varies(r);
  const Type type = e_.type(n.a);
  const std::string start = initial(how, type), name = variable("r", r);
  if (grouped_ && plan_.columns) return declare_columns(r, start);
  const auto widened = [&](const std::string& s, Type t) { return vector ? splat(t, s) : s; };
  line(type_name(type, vector ? lanes_ : 1) + " " + name + " = " + widened(start, type) + ";");
  if (is_compensated(r))
    line(type_name(type, vector ? lanes_ : 1) + " " + lost(name) + " = " + widened(start, type) +
         ";");
  if (is_position(how))
    line(type_name(Type::kI64, vector ? lanes_ : 1) + " p" + number(r) + " = " +
         widened("0L", Type::kI64) + ";");
  if (!lanes) return;
  const std::string declared = type_name(type, lanes_) + " ", zero = splat(type, start);
  for (std::int64_t copy = 0; copy < copies; ++copy)
    line(declared + partial(r, copy) + " = " + zero + ";");
  if (is_compensated(r))
    line(declared + blocks(r) + " = " + zero + ", " + lost(blocks(r)) + " = " + zero + ";");
}

void PointPrinter::declare_columns(Expr r, const std::string& start) {
  const Type type = e_.type(e_.node(r).a);
  const std::string name = variable("r", r), size = "[" + number(plan_.chunk) + "]";
  std::string names = name + size, starts = name + "[i] = " + start + ";";
  if (is_compensated(r)) {
    names += ", " + lost(name) + size;
    starts += " " + lost(name) + "[i] = " + start + ";";
  }
  line(type_name(type, 1) + " " + names + ";");
  columns_of_chunk([&] { line(starts); });
}

// `name` is the largest (or smallest) value until now.
void PointPrinter::update_position(Expr r, const std::string& name, const std::string& value,
                                   bool vector) {
  const Node& n = e_.node(r);
  std::string at = "0L";
  for (std::size_t a = kernel_.outer_count; a < e_.extents().size(); ++a)
    at = "(" + at + " * " + number(e_.extents()[a]) + "L + (long)" + axis_name(a) + ")";
  const std::string op = static_cast<Reduction>(n.index) == Reduction::kArgMax ? " > " : " < ";
  const std::string better = "((" + value + op + name + ")" + (vector ? " | " : " || ") + "((" +
                             value + " != " + value + ")" + (vector ? " & " : " && ") + "(" + name +
                             " == " + name + ")))";
  const std::string position = "p" + number(r);
  if (vector) {
    const std::string wide_mask =
        is_wide_type(e_.type(n.a)) ? better : "convert_long" + number(lanes_) + "(" + better + ")";
    line(position + " = select(" + position + ", " + splat(Type::kI64, at) + ", " + wide_mask +
         ");");
    line(name + " = select(" + name + ", " + value + ", " + better + ");");
    return;
  }
  open("if " + better);
  line(position + " = " + at + ";");
  line(name + " = " + value + ";");
  close();
}

void PointPrinter::join_copies(Expr r, std::int64_t copies) {
  const Node& n = e_.node(r);
  for (std::int64_t copy = 1; copy < copies; ++copy)
    line(partial(r, 0) + " = " +
         combine(static_cast<Reduction>(n.index), n.type, partial(r, 0), partial(r, copy), true) +
         ";");
}

void PointPrinter::end_block(Expr r, std::int64_t copies) {
  join_copies(r, copies);
  add_compensated(blocks(r), partial(r, 0), true);
  for (std::int64_t copy = 0; copy < copies; ++copy)
    line(partial(r, copy) + " = " + splat(Type::kF32, "0.0f") + ";");
}

void PointPrinter::join_lanes(Expr r) {
  const Node& n = e_.node(r);
  const auto how = static_cast<Reduction>(n.index);
  const std::string name = variable("r", r), all = variable("q", r);
  if (lanes_ == 16) {  // halves against each other: four steps, not sixteen
    const std::string type = type_name(n.type, 1);
    std::string wide = all;
    for (std::int64_t width = 8; width > 1; width /= 2) {
      const std::string half = all + "_" + number(width);
      line(type + number(width) + " " + half + " = " +
           join(how, n.type, wide + ".lo", wide + ".hi", width) + ";");
      wide = half;
    }
    line(name + " = " +
         combine(how, n.type, name, join(how, n.type, wide + ".x", wide + ".y", 1), false) + ";");
    return;
  }
  for (std::int64_t i = 0; i < lanes_; ++i)
    line(name + " = " + combine(how, n.type, name, all + ".s" + kLaneDigits[i], false) + ";");
}

void PointPrinter::reduce_phase(const std::vector<Expr>& reductions, bool wide) {
  const bool lanes = lanes_in_loop();
  // Sums that do not wait for each other: one chain of additions is slower than memory.
  const std::int64_t copies = lanes && e_.extents().back() >= kCopies * lanes_ ? kCopies : 1;
  for (const Expr r : reductions) {
    hoist(e_.node(r).a, wide || lanes);
    declare(r, wide, copies);
  }
  const auto variable_of = [&](Expr r) {
    return variable("r", r) + (grouped_ && plan_.columns ? "[i]" : "");
  };
  const auto add_point = [&](bool inside, std::int64_t copy) {
    for (const Expr r : reductions) {
      const Node& n = e_.node(r);
      const auto how = static_cast<Reduction>(n.index);
      const bool vector = lanes ? inside : wide && varies(r);
      const std::string name = lanes && inside ? partial(r, copy) : variable_of(r);
      const std::string value = ref(n.a, vector);
      if (is_position(how)) {
        update_position(r, name, value, vector);
      } else if (is_compensated(r) && !(lanes && inside)) {
        add_compensated(name, value, vector);
      } else {
        line(name + " = " + combine(how, e_.type(n.a), name, value, vector) + ";");
      }
    }
  };
  loops(add_point, wide, copies, [&] {
    for (const Expr r : reductions)
      if (is_compensated(r)) end_block(r, copies);
  });
  for (const Expr r : reductions) {
    if (lanes && is_compensated(r)) {
      line(partial(r, 0) + " = " + blocks(r) + ";");
    } else if (lanes) {
      join_copies(r, copies);
    }
    if (lanes) join_lanes(r);
    const bool vector = wide && varies(r);
    const bool is_at = is_position(static_cast<Reduction>(e_.node(r).index));
    scopes_.back()[{r, vector}] = is_at ? variable("p", r) : variable_of(r);
  }
  if (grouped_) join_group(reductions);
}

}  // namespace backplane::kernelgen
