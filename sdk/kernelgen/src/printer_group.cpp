// Kernels of a GPU schedule whose work-items share rows or columns.
#include <algorithm>
#include <utility>

#include "functions.hpp"
#include "printer.hpp"
#include "printer_names.hpp"

namespace backplane::kernelgen {
namespace {

constexpr std::int64_t kWarp = 32;   // work-items that exchange registers
constexpr std::int64_t kWarps = 16;  // of the largest group
constexpr std::int64_t kWord = 16;   // bytes of the widest access

bool has_shuffles(Dialect dialect) { return dialect == Dialect::kCuda; }

}  // namespace

std::int64_t PointPrinter::kept_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < e_.size(); ++i) {
    const Node& n = e_.node(static_cast<Expr>(i));
    const auto passes =
        std::ranges::count_if(reached_, [&](const auto& reached) { return bool{reached[i]}; });
    if (n.op == Op::kLoad && passes > 1) bytes += storage_bytes(static_cast<Storage>(n.integer));
    if (is_dear_again(static_cast<Expr>(i))) bytes += storage_bytes(Storage::kF32);
  }
  return bytes;
}

std::string PointPrinter::group_items() const {
  if (plan_.columns) return number(plan_.group / plan_.items);
  return plan_.items != 0 ? number(plan_.items) : "(int)BP_LOCAL_SIZE";
}
std::int64_t PointPrinter::sharers() const {
  const std::int64_t in_group = plan_.columns      ? plan_.group / plan_.items
                                : plan_.items != 0 ? plan_.items
                                                   : plan_.group;
  return in_group * (kernel_.sliced ? e_.extents()[0] : 1);
}
// Chunks of a row, elements of a column.
std::int64_t PointPrinter::steps() const {
  std::int64_t count = 1;
  for (std::size_t a = kernel_.outer_count; a < e_.extents().size(); ++a) count *= e_.extents()[a];
  return plan_.columns ? count : count / plan_.chunk;
}
// Of what a work-item keeps of its elements.
std::string PointPrinter::element_index() const {
  if (plan_.slots == 0) return "i";
  return plan_.chunk > 1 ? "slot * " + number(plan_.chunk) + " + i" : "slot";
}

// Variables of the outer axes from a flat index, which counts chunks of the last one.
std::string PointPrinter::begin_points(const std::string& flat, std::int64_t chunk) const {
  return decode_points(kernel_, kernel_.outer_count, flat,
                       e_.index_type() == Type::kI64 ? "long" : "int", chunk);
}

// Which row or columns a work-item is for.
std::string PointPrinter::begin_group() {
  const std::string index = e_.index_type() == Type::kI64 ? "long" : "int";
  const std::string id = "(" + index + ")BP_GROUP_ID", local = "(int)BP_LOCAL_ID";
  if (!plan_.columns && plan_.items == 0)
    return "  const int lane = " + local + ";\n" + begin_points(id, 1);
  std::int64_t points = 1;
  for (std::size_t a = 0; a < kernel_.outer_count; ++a) points *= e_.extents()[a];
  const std::string items = number(plan_.items);
  const std::int64_t side = plan_.columns ? plan_.items : plan_.group / plan_.items;
  const std::int64_t chunk = plan_.columns ? plan_.chunk : 1;
  std::string out = "  const int lane = " + local + (plan_.columns ? " / " : " % ") + items + ";\n";
  const std::string own = local + (plan_.columns ? " % " : " / ") + items;
  std::string at = side == 1 ? id : id + " * " + number(side) + " + " + own;
  if (points / chunk % side != 0) {
    // All work-items meet, those without a row or column too.
    out += "  const int live = " + at + " < " + number(points / chunk) + ";\n";
    at = "(live ? " + at + " : 0)";
    is_partial_ = true;
  }
  out += begin_points(at, chunk);
  if (plan_.columns)
    out += "  const " + index + " first = " + axis_name(kernel_.outer_count - 1) + ";\n";
  return out;
}

PointPrinter::Chunk* PointPrinter::add_chunk(std::size_t tensor, Storage storage, Expr offset,
                                             bool is_stored) {
  Place& place = chunks_[chunk_of(tensor, offset)];
  if (!place.name.empty()) return nullptr;
  place = {"c" + number(static_cast<std::int64_t>(group_chunks_.size())), "i"};
  group_chunks_.push_back({place.name, tensor, storage, offset, is_stored,
                           std::vector<bool>(reached_.size(), false), false});
  return &group_chunks_.back();
}

// What is read and written in chunks: in words where addresses allow, else what stays in registers.
void PointPrinter::find_chunks(bool in_words) {
  group_chunks_.clear();
  chunks_.clear();
  const std::size_t axis = chunk_axis(kernel_, plan_);
  const bool is_wide = in_words && plan_.chunk > 1;
  for (std::size_t i = 0; i < e_.size(); ++i) {
    const Node& n = e_.node(static_cast<Expr>(i));
    if (n.op != Op::kLoad || !in_loops(static_cast<Expr>(i))) continue;
    if (std::ranges::any_of(kernel_.stores, [&](const Store& s) {
          return s.tensor == static_cast<std::size_t>(n.index);
        }))
      continue;
    const auto is_reached = [&](const auto& reached) { return bool{reached[i]}; };
    const auto passes = std::ranges::count_if(reached_, is_reached);
    const bool is_held = plan_.slots > 0 && passes > 1;
    if (passes == 0 || !(is_wide ? lies_along(kernel_, n.a, axis) : is_held)) continue;
    Chunk* chunk =
        add_chunk(static_cast<std::size_t>(n.index), static_cast<Storage>(n.integer), n.a, false);
    for (std::size_t p = 0; p < reached_.size(); ++p) chunk->passes[p] = reached_[p][i];
    chunk->is_held = is_held;
    if (!is_held) continue;
    chunks_[chunk_of(chunk->tensor, chunk->offset)].index = element_index();
    std::fill(std::ranges::find(chunk->passes, true) + 1, chunk->passes.end(), false);
  }
  if (is_wide)
    for (const Store& s : kernel_.stores)
      if (s.mode == Store::kPlain && is_walked(s) && lies_along(kernel_, s.offset, axis))
        if (Chunk* chunk = add_chunk(s.tensor, s.storage, s.offset, true))
          chunk->passes.back() = true;
}

void PointPrinter::declare_chunk(const Chunk& c, std::int64_t count) {
  const std::string type(element_type(c.storage));
  // Halves are no type of variables everywhere.
  const bool is_half = c.storage == Storage::kF16;
  line((is_half ? "ushort" : type) + " " + c.name + (is_half ? "_bits[" : "[") + number(count) +
       "] BP_ALIGNED_16;");
  if (is_half) line(type + "* " + c.name + " = (" + type + "*)" + c.name + "_bits;");
}

// Between a chunk and the memory that it is of.
void PointPrinter::copy_chunk(const Chunk& c) {
  open("");
  if (plan_.chunk > 1) {
    const char* index = e_.index_type() == Type::kI64 ? "const long " : "const int ";
    line(index + axis_name(chunk_axis(kernel_, plan_)) + " = first;");
  }
  const std::string type(element_type(c.storage));
  line("BP_GLOBAL " + type + "* at = " + variable("t", static_cast<std::int64_t>(c.tensor)) +
       " + " + ref(c.offset, false) + ";");
  const std::string held =
      c.is_held ? "(" + c.name + " + slot * " + number(plan_.chunk) + ")" : c.name;
  copy_words(storage_bytes(c.storage), plan_.chunk, held, c.is_stored);
  close();
}

// Elements between the variables `held` and memory at `at`.
void PointPrinter::copy_words(std::int64_t element_bytes, std::int64_t count,
                              const std::string& held, bool is_stored) {
  const std::string constant = is_stored ? "" : "const ";
  const std::int64_t bytes = element_bytes * count;
  const std::string word(word_type(bytes));
  for (std::int64_t w = 0; w < std::max<std::int64_t>(bytes / kWord, 1); ++w) {
    const std::string which = "[" + number(w) + "]", here = "((" + word + "*)" + held + ")" + which,
                      there = "((BP_GLOBAL " + constant + word + "*)at)" + which;
    line(is_stored ? there + " = " + here + ";" : here + " = " + there + ";");
  }
}

// The same for all rows and columns, which lie whole chunks apart.
void PointPrinter::check_alignment() {
  line("ulong bits = 0;");
  open("");
  const std::string index = e_.index_type() == Type::kI64 ? "const long " : "const int ";
  for (std::size_t a = 0; a < e_.extents().size(); ++a) line(index + axis_name(a) + " = 0;");
  for (const Chunk& c : group_chunks_)
    check_alignment_of(c.tensor, c.offset, plan_.chunk * storage_bytes(c.storage));
  close();
}
void PointPrinter::check_alignment_of(std::size_t tensor, Expr offset, std::int64_t bytes) {
  line("bits |= (ulong)(" + variable("t", static_cast<std::int64_t>(tensor)) + " + " +
       ref(offset, false) + ") & " + number(std::min(kWord, bytes) - 1) + ";");
}

std::string PointPrinter::group(const GroupPlan& plan) {
  plan_ = plan;
  grouped_ = true;
  is_partial_ = false;
  const std::string begin = begin_group();
  const auto count = static_cast<std::int64_t>(reductions_.size());
  std::int64_t words = 0;
  if (plan_.columns)
    words = plan_.items < plan_.group ? plan_.group * plan_.chunk : 0;
  else if (!has_shuffles(dialect_))
    words = plan_.items != 0 ? plan_.group : kWarps * kWarp;
  else
    words = plan_.items == 0 || plan_.items > kWarp ? count * kWarps : 0;
  std::string out;
  if (words != 0) out += "  BP_LOCAL long shared[" + number(words) + "];\n";
  out += begin;
  const auto text = [&](bool in_words) {
    if (plan_.slots > 0) choose_kept();
    find_chunks(in_words);
    return group_point();
  };
  const std::string together = text(true);
  const bool is_wide = plan_.chunk > 1 && !group_chunks_.empty();
  if (is_wide) {
    out_.clear();
    scopes_.assign(1, {});
    check_alignment();
    out += out_ + "  if (bits == 0) {\n";
  }
  out += together;
  if (is_wide) {
    if (!plan_.columns) {
      plan_.slots *= plan_.chunk;
      plan_.chunk = 1;
    }
    out += "  } else {\n" + text(false) + "  }\n";
  }
  chunks_.clear();
  return out;
}

std::string PointPrinter::group_point() {
  out_.clear();
  scopes_.assign(1, {});
  shared_ = 0;
  const std::int64_t held = plan_.slots * plan_.chunk;
  for (std::size_t i = 0; i < kept_.size(); ++i)
    if (kept_[i] != 0) line("float " + kept_name(static_cast<Expr>(i)) + "[" + number(held) + "];");
  for (const Chunk& c : group_chunks_)
    if (c.is_held) declare_chunk(c, held);
  for (pass_ = 1; pass_ <= deepest_; ++pass_) {
    std::vector<Expr> now;
    for (const Expr r : reductions_)
      if (depth(r) == pass_) now.push_back(r);
    if (!now.empty()) reduce_phase(now, false);
  }
  pass_ = deepest_ + 1;
  if (is_partial_) open("if (live)");
  std::vector<const Store*> walked, once;
  for (const Store& s : kernel_.stores) (is_walked(s) ? walked : once).push_back(&s);
  if (!once.empty()) {
    open("if (lane == 0)");
    const auto store_all = [&] {
      for (const Store* s : once) store(*s, false);
    };
    if (plan_.columns)
      columns_of_chunk(store_all);
    else
      store_all();
    close();
  }
  for (const Store* s : walked) hoist(s->value, false);
  if (!walked.empty())
    group_loop([&] {
      for (const Store* s : walked) store(*s, false);
    });
  if (is_partial_) close();
  return out_;
}

void PointPrinter::columns_of_chunk(const std::function<void()>& body) {
  const std::string index = e_.index_type() == Type::kI64 ? "const long " : "const int ";
  line("BP_UNROLL");
  open("for (int i = 0; i < " + number(plan_.chunk) + "; ++i)");
  line(index + axis_name(chunk_axis(kernel_, plan_)) + " = first + i;");
  body();
  close();
}

// The work-item's steps through its row or columns.
void PointPrinter::group_loop(const std::function<void()>& body) {
  const std::string index = e_.index_type() == Type::kI64 ? "long" : "int";
  const std::int64_t count = steps();
  const std::string items = group_items();
  bool is_guarded = false;
  if (plan_.slots > 0) {
    line("BP_UNROLL");
    open("for (int slot = 0; slot < " + number(plan_.slots) + "; ++slot)");
    line("const " + index + " place = slot * " + items + " + lane;");
    is_guarded = plan_.slots * plan_.items != count;
    if (is_guarded) open("if (place < " + number(count) + ")");
  } else {
    std::string start = "lane", end = number(count);
    if (kernel_.sliced) {
      const std::string slice = number((count + e_.extents()[0] - 1) / e_.extents()[0]);
      line("const " + index + " begin_" + number(pass_) + " = a0 * " + slice + ", end_" +
           number(pass_) + " = BP_MIN(begin_" + number(pass_) + " + " + slice + ", " + end + ");");
      start = "begin_" + number(pass_) + " + lane";
      end = "end_" + number(pass_);
    }
    line("BP_UNROLL_4");
    open("for (" + index + " place = " + start + "; place < " + end + "; place += " + items + ")");
  }
  begin_step();
  for (const Chunk& c : group_chunks_) {
    if (!c.passes[static_cast<std::size_t>(pass_)]) continue;
    if (!c.is_held) declare_chunk(c, plan_.chunk);
    if (!c.is_stored) copy_chunk(c);
  }
  if (plan_.columns || plan_.chunk > 1)
    columns_of_chunk(body);
  else
    body();
  for (const Chunk& c : group_chunks_)
    if (c.is_stored && c.passes[static_cast<std::size_t>(pass_)]) copy_chunk(c);
  if (is_guarded) close();
  close();
}

// Variables of the loop axes; `first` for the one that chunks run along.
void PointPrinter::begin_step() {
  const std::string index = e_.index_type() == Type::kI64 ? "long" : "int";
  const std::size_t outer = kernel_.outer_count, last = e_.extents().size() - 1;
  std::string rest = "place";
  for (std::size_t a = last; a >= outer; --a) {
    const bool is_chunked = a == last && !plan_.columns && plan_.chunk > 1;
    const std::int64_t chunk = is_chunked ? plan_.chunk : 1, extent = e_.extents()[a] / chunk;
    std::string at = a == outer ? rest : rest + " % " + number(extent);
    if (is_chunked) at = (a == outer ? at : "(" + at + ")") + " * " + number(chunk);
    line("const " + index + " " + (is_chunked ? "first" : axis_name(a)) + " = " + at + ";");
    if (a == outer) break;
    const std::string next = "rest_" + number(static_cast<std::int64_t>(a));
    line("const " + index + " " + next + " = " + rest + " / " + number(extent) + ";");
    rest = next;
  }
}

// Every work-item that shares a row or column gets the results.
void PointPrinter::join_group(const std::vector<Expr>& reductions) {
  if (!plan_.columns && has_shuffles(dialect_)) return join_warps(reductions);
  for (const Expr r : reductions) {
    if (!plan_.columns)
      join_tree(r);
    else if (plan_.items < plan_.group)
      join_lines(r);
  }
}

// Registers are exchanged within warps, then what those have in the group's memory.
void PointPrinter::join_warps(const std::vector<Expr>& reductions) {
  const auto how = [&](Expr r) { return static_cast<Reduction>(e_.node(r).index); };
  const auto type = [&](Expr r) { return e_.node(r).type; };
  const auto add = [&](Expr r, const std::string& other) {
    const std::string name = variable("r", r);
    line("const " + type_name(type(r), 1) + " other_" + name + " = " + other + ";");
    line(name + " = " + combine(how(r), type(r), name, "other_" + name, false) + ";");
  };
  const std::int64_t items = plan_.items != 0 ? plan_.items : kWarp;
  if (items > 1) {
    line("BP_UNROLL");
    open("for (int apart = " + number(std::min(items, kWarp) / 2) + "; apart > 0; apart /= 2)");
    for (const Expr r : reductions) add(r, "BP_SHUFFLE_XOR(" + variable("r", r) + ", apart)");
    close();
  }
  if (plan_.items != 0 && plan_.items <= kWarp) return;
  const std::int64_t first = shared_;
  // The warps of a group stand side by side, those of a row among them.
  const bool is_whole = plan_.items == 0 || plan_.items == plan_.group;
  const std::string warps =
      plan_.items != 0 ? number(plan_.items / kWarp) : "(int)BP_LOCAL_SIZE / " + number(kWarp);
  const std::string row =
      is_whole ? "" : "(int)BP_LOCAL_ID / " + number(plan_.items) + " * " + warps + " + ";
  const auto place = [&](std::size_t which, const std::string& at) {
    return "((BP_LOCAL_AS " + type_name(type(reductions[which]), 1) + "*)(shared + " +
           number(first + static_cast<std::int64_t>(which) * kWarps) + "))[" + row + at + "]";
  };
  shared_ += static_cast<std::int64_t>(reductions.size()) * kWarps;
  open("if (lane % " + number(kWarp) + " == 0)");
  for (std::size_t i = 0; i < reductions.size(); ++i)
    line(place(i, "lane / " + number(kWarp)) + " = " + variable("r", reductions[i]) + ";");
  close();
  line("BP_BARRIER;");
  for (std::size_t i = 0; i < reductions.size(); ++i)
    line(variable("r", reductions[i]) + " = " + place(i, "0") + ";");
  line("BP_UNROLL");
  open("for (int warp = 1; warp < " + warps + "; ++warp)");
  for (std::size_t i = 0; i < reductions.size(); ++i) add(reductions[i], place(i, "warp"));
  close();
}

// A tree in the group's memory.
void PointPrinter::join_tree(Expr r) {
  const Node& n = e_.node(r);
  const std::string name = variable("r", r);
  const std::string shared = "((BP_LOCAL_AS " + type_name(n.type, 1) + "*)shared)";
  line("BP_BARRIER;");
  line(shared + "[BP_LOCAL_ID] = " + name + ";");
  open("for (int half_size = " + group_items() + " / 2; half_size > 0; half_size /= 2)");
  line("BP_BARRIER;");
  open("if (lane < half_size)");
  const std::string a = shared + "[BP_LOCAL_ID]", b = shared + "[BP_LOCAL_ID + half_size]";
  line(a + " = " + combine(static_cast<Reduction>(n.index), n.type, a, b, false) + ";");
  close();
  close();
  line("BP_BARRIER;");
  line(name + " = " + shared + "[BP_LOCAL_ID - lane];");
}

// Lines of columns side by side in the group's memory: each work-item adds up some columns.
void PointPrinter::join_lines(Expr r) {
  const Node& n = e_.node(r);
  const auto how = static_cast<Reduction>(n.index);
  const std::string name = variable("r", r), type = type_name(n.type, 1);
  const std::string shared = "((BP_LOCAL_AS " + type + "*)shared)";
  const std::int64_t side = plan_.items * plan_.chunk;
  const std::string mine =
      "BP_LOCAL_ID % " + number(plan_.items) + " * " + number(plan_.chunk) + " + i";
  line("BP_BARRIER;");
  columns_of_chunk(
      [&] { line(shared + "[lane * " + number(side) + " + " + mine + "] = " + name + "[i];"); });
  line("BP_BARRIER;");
  open("for (int column = (int)BP_LOCAL_ID; column < " + number(side) +
       "; column += (int)BP_LOCAL_SIZE)");
  line(type + " sum = " + shared + "[column];");
  open("for (int other = 1; other < " + group_items() + "; ++other)");
  const std::string there = shared + "[other * " + number(side) + " + column]";
  line("const " + type + " one = " + there + ";");
  line("sum = " + combine(how, n.type, "sum", "one", false) + ";");
  close();
  line(shared + "[column] = sum;");
  close();
  line("BP_BARRIER;");
  columns_of_chunk([&] { line(name + "[i] = " + shared + "[" + mine + "];"); });
}

}  // namespace backplane::kernelgen
