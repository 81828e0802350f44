#include "printer.hpp"

#include <algorithm>
#include <utility>

#include "functions.hpp"
#include "printer_names.hpp"

namespace backplane::kernelgen {
namespace {

constexpr std::int64_t kLongestKept = 4096;   // elements of a row in private memory
constexpr std::int64_t kLongestUnrolled = 4;  // vectors of a row: more take compilers long
bool is_dear(Op op) { return (op >= Op::kExp && op <= Op::kSigmoid) || op >= Op::kPow; }

}  // namespace

PointPrinter::PointPrinter(const Kernel& kernel, Dialect dialect, std::size_t lane_axis,
                           const Schedule& schedule)
    : kernel_(kernel),
      e_(kernel.expressions),
      dialect_(dialect),
      lane_axis_(lane_axis),
      lanes_(schedule.lanes),
      stream_bytes_(schedule.stream_bytes) {
  if (schedule.unroll && lanes_in_loop() && e_.extents().size() == kernel_.outer_count + 1 &&
      e_.extents().back() % lanes_ == 0 && e_.extents().back() <= kLongestUnrolled * lanes_)
    vectors_ = e_.extents().back() / lanes_;
  analyse();
}

// Which axes each expression depends on, and how many reductions stand under it.
void PointPrinter::analyse() {
  const std::size_t axes = e_.extents().size();
  for (std::size_t a = kernel_.outer_count; a < axes; ++a) loop_mask_ |= std::uint64_t{1} << a;
  masks_.assign(e_.size(), 0);
  depths_.assign(e_.size(), 0);
  for (std::size_t i = 0; i < e_.size(); ++i) {  // operands come before their users
    const Node& n = e_.node(static_cast<Expr>(i));
    if (n.op == Op::kAxis) masks_[i] = std::uint64_t{1} << n.index;
    // An external is what the surrounding text computed for this very point.
    if (n.op == Op::kExternal && lane_axis_ != kNoAxis) masks_[i] = std::uint64_t{1} << lane_axis_;
    for (const Expr operand : {n.a, n.b, n.c}) {
      if (operand == kNoExpr) continue;
      masks_[i] |= mask(operand);
      depths_[i] = std::max(depths_[i], depth(operand));
    }
    if (n.op == Op::kReduce) {
      masks_[i] &= ~loop_mask_;
      ++depths_[i];
    }
  }
  needed_.assign(e_.size(), false);
  for (const Store& s : kernel_.stores)
    needed_[static_cast<std::size_t>(s.offset)] = needed_[static_cast<std::size_t>(s.value)] = true;
  for (std::size_t i = e_.size(); i-- > 0;) {
    if (!needed_[i]) continue;
    const Node& n = e_.node(static_cast<Expr>(i));
    for (const Expr operand : {n.a, n.b, n.c})
      if (operand != kNoExpr) needed_[static_cast<std::size_t>(operand)] = true;
    if (n.op == Op::kReduce) reductions_.push_back(static_cast<Expr>(i));
  }
  std::reverse(reductions_.begin(), reductions_.end());
  for (const Expr r : reductions_) deepest_ = std::max(deepest_, depth(r));
  find_passes();
  kept_.assign(e_.size(), 0);
  if (lanes_in_loop() && axes == kernel_.outer_count + 1 && e_.extents().back() <= kLongestKept)
    choose_kept();
}

// What is computed inside the loops for `e`.
void PointPrinter::mark_reached(Expr e, std::vector<bool>& reached) const {
  const auto i = static_cast<std::size_t>(e);
  if (reached[i] || !in_loops(e)) return;
  reached[i] = true;
  const Node& n = e_.node(e);
  for (const Expr operand : {n.a, n.b, n.c})
    if (operand != kNoExpr) mark_reached(operand, reached);
}

void PointPrinter::find_passes() {
  for (std::int32_t pass = 0; pass <= deepest_ + 1; ++pass) {
    auto& reached = reached_.emplace_back(e_.size(), false);
    for (const Expr r : reductions_)
      if (depth(r) == pass) mark_reached(e_.node(r).a, reached);
    if (pass == deepest_ + 1)
      for (const Store& s : kernel_.stores) mark_reached(s.value, reached);
  }
}

bool PointPrinter::is_dear_again(Expr e) const {
  const auto count = std::ranges::count_if(
      reached_, [&](const auto& reached) { return reached[static_cast<std::size_t>(e)]; });
  return count > 1 && e_.type(e) == Type::kF32 && is_dear(e_.node(e).op);
}

void PointPrinter::choose_kept() {
  for (std::size_t i = 0; i < e_.size(); ++i) {
    if (!is_dear_again(static_cast<Expr>(i))) continue;
    const auto first =
        std::ranges::find_if(reached_, [&](const auto& reached) { return bool{reached[i]}; });
    kept_[i] = static_cast<std::int32_t>(first - reached_.begin());
  }
}

void PointPrinter::line(const std::string& statement) {
  out_.append(indent_ * 2, ' ');
  out_ += statement;
  out_ += '\n';
}
void PointPrinter::open(const std::string& head) {
  line(head.empty() ? "{" : head + " {");
  ++indent_;
  scopes_.emplace_back();
}
void PointPrinter::close() {
  --indent_;
  scopes_.pop_back();
  line("}");
}

// Loops that run never: what would be computed before them may read tensors without elements.
bool PointPrinter::has_empty_loop() const {
  const auto extents = e_.extents().subspan(kernel_.outer_count);
  return std::find(extents.begin(), extents.end(), 0) != extents.end();
}

// What does not change inside the loops is computed before them.
void PointPrinter::hoist(Expr e, bool wide) {
  // Of a chunk of columns each has its own.
  if (has_empty_loop() || (grouped_ && plan_.columns)) return;
  const Node& n = e_.node(e);
  if (n.op == Op::kConstant || n.op == Op::kAxis || n.op == Op::kExternal) return;
  if (!in_loops(e)) {
    ref(e, wide && varies(e));
    return;
  }
  if (n.op == Op::kReduce) return;
  if (n.op == Op::kLoad) {
    std::int64_t stride = 0;
    if (wide && lane_axis_ != kNoAxis && e_.stride(n.a, lane_axis_, stride) && stride <= 1)
      return hoist(n.a, false);
  }
  for (const Expr operand : {n.a, n.b, n.c})
    if (operand != kNoExpr) hoist(operand, wide);
}

void PointPrinter::loops(const std::function<void(bool, std::int64_t)>& body, bool wide_outside,
                         std::int64_t copies, const std::function<void()>& end_block) {
  if (has_empty_loop()) return;
  if (grouped_) return group_loop([&] { body(false, 0); });
  const std::size_t axes = e_.extents().size(), first = kernel_.outer_count;
  const char* index = e_.index_type() == Type::kI64 ? "long " : "int ";
  for (std::size_t a = first; a + 1 < axes; ++a) {
    const std::string name = axis_name(a);
    std::string head = "for (";
    head.append(index).append(name).append(" = 0; ").append(name).append(" < ");
    open(head.append(number(e_.extents()[a])).append("; ++").append(name).append(")"));
  }
  const std::size_t last = axes - 1;
  const std::string name = axis_name(last), limit = number(e_.extents()[last]);
  const std::string declared = std::string(index) + name;
  if (vectors_ != 0) {
    for (vector_ = 0; vector_ < vectors_; ++vector_) {
      open("");
      line("const " + declared + " = " + number(vector_ * lanes_) + ";");
      body(true, vector_ % copies);
      close();
    }
  } else if (lanes_in_loop()) {
    line("{");
    line(declared + " = 0;");
    const auto vectors = [&](std::int64_t count) {
      const std::string step = number(count * lanes_);
      open("for (; " + name + " + " + step + " <= " + limit + "; " + name + " += " + step + ")");
    };
    if (copies > 1) {
      vectors(copies);
      line("const " + declared + "_first = " + name + ";");
      for (std::int64_t copy = 0; copy < copies; ++copy) {
        open("");
        std::string own = "const ";
        own.append(declared).append(" = ").append(name).append("_first + ");
        line(own.append(number(copy * lanes_)).append(";"));
        body(true, copy);
        close();
      }
      if (e_.extents()[last] > kSumBlock) {
        open("if ((" + name + " & " + number(kSumBlock - 1) +
             ") == " + number(kSumBlock - copies * lanes_) + ")");
        end_block();
        close();
      }
      close();
    }
    if (e_.extents()[last] % (copies * lanes_) >= lanes_ || copies == 1) {
      vectors(1);
      body(true, 0);
      close();
    }
    if (e_.extents()[last] % lanes_ != 0) {
      open("for (; " + name + " < " + limit + "; ++" + name + ")");
      body(false, 0);
      close();
    }
    end_block();
    line("}");
  } else {
    open("for (" + declared + " = 0; " + name + " < " + limit + "; ++" + name + ")");
    body(wide_outside, 0);
    close();
  }
  for (std::size_t a = first; a + 1 < axes; ++a) close();
}

bool PointPrinter::is_streamed(const Store& s) const {
  if (stream_bytes_ == 0 || s.storage != Storage::kF32 || s.mode != Store::kPlain) return false;
  auto bytes = static_cast<std::int64_t>(storage_bytes(s.storage));
  for (std::size_t a = 0; a < e_.extents().size(); ++a)
    if ((mask(s.offset) >> a & 1) != 0) bytes *= e_.extents()[a];
  return bytes >= stream_bytes_;
}
bool PointPrinter::streams() const {
  return lane_axis_ != kNoAxis && std::any_of(kernel_.stores.begin(), kernel_.stores.end(),
                                              [&](const Store& s) { return is_streamed(s); });
}

// The first pass over a row waits for memory, the last does not: it asks for the next row.
void PointPrinter::read_ahead() {
  if (deepest_ == 0 || !lanes_in_loop() || kernel_.outer_count == 0) return;
  for (std::size_t i = 0; i < e_.size(); ++i) {
    const Node& n = e_.node(static_cast<Expr>(i));
    std::int64_t along = 0, apart = 0;
    if (n.op != Op::kLoad || !reached_[1][i] || !e_.stride(n.a, lane_axis_, along) || along != 1 ||
        !e_.stride(n.a, kernel_.outer_count - 1, apart) || apart == 0)
      continue;
    line("BP_PREFETCH(" + variable("t", n.index) + " + " + ref(n.a, false) + " + " + number(apart) +
         ");");
  }
}

// Whether it is made at each point of the loops. Something that is the same at all of them is added
// as often.
bool PointPrinter::is_walked(const Store& s) const {
  return in_loops(s.offset) || in_loops(s.value) ||
         (s.mode == Store::kAdd && loop_mask_ != 0 && depth(s.value) == 0);
}

void PointPrinter::store(const Store& s, bool wide) {
  const std::string t = variable("t", static_cast<std::int64_t>(s.tensor));
  const bool bf16 = s.storage == Storage::kBF16, f16 = s.storage == Storage::kF16;
  const std::string type(element_type(s.storage));
  const auto one = [&](const std::string& at, const std::string& value) {
    return element_store(s.storage, t, at, value) + ";";
  };
  if (s.mode == Store::kAdd) return add_to(s, wide);
  if (s.mode == Store::kNonZero) return store_non_zero(s, wide);
  if (!chunks_.empty())
    if (const auto chunk = chunks_.find(chunk_of(s.tensor, s.offset)); chunk != chunks_.end()) {
      const auto& [name, index] = chunk->second;
      // A copy keeps the bits.
      const Node& n = e_.node(s.value);
      if (bf16 && n.op == Op::kLoad && static_cast<Storage>(n.integer) == s.storage)
        if (const auto from = chunks_.find(chunk_of(static_cast<std::size_t>(n.index), n.a));
            from != chunks_.end())
          return line(name + "[" + index + "] = " + from->second.name + "[" + from->second.index +
                      "];");
      return line(element_store(s.storage, name, index, ref(s.value, false)) + ";");
    }
  if (!wide || !(varies(s.offset) || varies(s.value))) {
    line(one(ref(s.offset, false), ref(s.value, false)));
    return;
  }
  const std::string value = ref(s.value, true), w = number(lanes_);
  std::int64_t stride = 0;
  if (e_.stride(s.offset, lane_axis_, stride) && stride == 1) {
    const std::string at = ", 0, " + t + " + " + ref(s.offset, false) + ");";
    if (f16) return line("BP_STORE_F16_" + w + "(" + value + at);
    if (bf16) return line("vstore" + w + "(bp_to_bf16_" + w + "(" + value + ")" + at);
    const bool same = s.storage == Storage::kF32 || s.storage == Storage::kF64 ||
                      s.storage == Storage::kI64 || s.storage == Storage::kI32;
    const std::string small = s.storage == Storage::kI8 ? "char" : type;
    if (s.storage == Storage::kF32)
      return line((is_streamed(s) ? "BP_STREAM_F32_" : "BP_STORE_F32_") + w + "(" + value + at);
    return line("vstore" + w + "(" + (same ? value : "convert_" + small + w + "(" + value + ")") +
                at);
  }
  const std::string at = ref(s.offset, true);
  for (std::int64_t i = 0; i < lanes_; ++i) {
    const std::string lane = std::string(".s") + kLaneDigits[i];
    line(one(at + lane, value + lane));
  }
}

// The storage is float32 or of integers: sums in halves would round at every addition.
void PointPrinter::add_to(const Store& s, bool wide) {
  const std::string t = variable("t", static_cast<std::int64_t>(s.tensor)), w = number(lanes_);
  const std::string type(element_type(s.storage));
  if (!wide || !varies(s.offset)) {
    const std::string at = t + "[" + ref(s.offset, false) + "]";
    return line(at + " = (" + type + ")(" + at + " + " + ref(s.value, false) + ");");
  }
  const std::string value = ref(s.value, true);
  std::int64_t stride = 0;
  if (e_.stride(s.offset, lane_axis_, stride) && stride == 1 && storage_bytes(s.storage) >= 4) {
    const std::string at = "0, " + t + " + " + ref(s.offset, false);
    return line("vstore" + w + "(vload" + w + "(" + at + ") + " + value + ", " + at + ");");
  }
  const std::string at = ref(s.offset, true);
  for (std::int64_t i = 0; i < lanes_; ++i) {
    const std::string lane = std::string(".s") + kLaneDigits[i], where = t + "[" + at + lane + "]";
    line(where + " = (" + type + ")(" + where + " + " + value + lane + ");");
  }
}

// The offset is the same at all points of a vector.
void PointPrinter::store_non_zero(const Store& s, bool wide) {
  const std::string t = variable("t", static_cast<std::int64_t>(s.tensor));
  const std::string at = t + "[" + ref(s.offset, false) + "]";
  const bool vector = wide && varies(s.value);
  const std::string value = ref(s.value, vector);
  if (!vector) return line("if (" + value + " != 0) " + at + " = " + value + ";");
  open("if (any(" + value + " != 0))");
  for (std::int64_t i = 0; i < lanes_; ++i) {
    const std::string lane = value + ".s" + kLaneDigits[i];
    line("if (" + lane + " != 0) " + at + " = " + lane + ";");
  }
  close();
}

std::string PointPrinter::point(bool wide) {
  out_.clear();
  scopes_.assign(1, {});
  for (std::size_t i = 0; i < kept_.size(); ++i)
    if (kept_[i] != 0 && vectors_ == 0)
      line("float " + variable("k", static_cast<std::int64_t>(i)) + "[" +
           number(e_.extents().back()) + "] BP_ALIGNED;");
    else if (kept_[i] != 0)
      for (vector_ = 0; vector_ < vectors_; ++vector_)
        line(type_name(Type::kF32, lanes_) + " " + kept_name(static_cast<Expr>(i)) + ";");
  for (std::int32_t d = 1; d <= deepest_; ++d) {
    pass_ = d;
    std::vector<Expr> now;
    for (const Expr r : reductions_)
      if (depth(r) == d) now.push_back(r);
    if (!now.empty()) reduce_phase(now, wide);
  }
  pass_ = deepest_ + 1;
  bool rows = false;
  for (const Store& s : kernel_.stores) {
    // One after the other over the points of the loops: over none of them.
    if (s.mode != Store::kPlain && has_empty_loop()) continue;
    if (is_walked(s)) {
      rows = true;
    } else {
      store(s, wide);
    }
  }
  if (rows) {
    for (const Store& s : kernel_.stores)
      if (is_walked(s)) hoist(s.value, wide || lanes_in_loop());
    loops(
        [&](bool inside, std::int64_t) {
          if (inside) read_ahead();
          for (const Store& s : kernel_.stores)
            if (is_walked(s)) store(s, inside);
        },
        wide, 1, [] {});
  }
  return out_;
}

bool PointPrinter::is_dense(Expr offset) const {
  std::int64_t stride = 0;
  return e_.stride(offset, kernel_.outer_count - 1, stride) && stride == 1;
}

std::string PointPrinter::chunk_of(std::size_t tensor, Expr offset) const {
  return number(static_cast<std::int64_t>(tensor)) + "_" + number(offset);
}

std::int64_t PointPrinter::chunk() const {
  constexpr std::int64_t kBytes = 16, kMost = 8;
  if (kernel_.outer_count == 0 || e_.extents().size() > kernel_.outer_count) return 0;
  std::int64_t least = kBytes;
  bool any = false;
  for (const Store& s : kernel_.stores) {
    if (s.mode != Store::kPlain || !is_dense(s.offset)) return 0;
    least = std::min(least, storage_bytes(s.storage));
  }
  for (std::size_t i = 0; i < e_.size(); ++i) {
    const Node& n = e_.node(static_cast<Expr>(i));
    if (n.op != Op::kLoad || !is_dense(n.a)) continue;
    // A chunk is read before any is written.
    for (const Store& s : kernel_.stores)
      if (s.tensor == static_cast<std::size_t>(n.index)) return 0;
    least = std::min(least, storage_bytes(static_cast<Storage>(n.integer)));
    any = true;
  }
  const std::int64_t count = std::min(kBytes / least, kMost);
  return any && count > 1 && e_.extents()[kernel_.outer_count - 1] % count == 0 ? count : 0;
}

std::string PointPrinter::points(std::int64_t count) {
  struct Chunk {
    std::string name, tensor;
    Storage storage;
    Expr offset;
    bool is_stored;
    std::int64_t bytes;
  };
  std::vector<Chunk> all;
  const auto add = [&](std::size_t tensor, Storage storage, Expr offset, bool is_stored) {
    auto& [name, element] = chunks_[chunk_of(tensor, offset)];
    if (!name.empty()) return;
    name = "c" + number(static_cast<std::int64_t>(all.size()));
    element = "i";
    all.push_back({name, variable("t", static_cast<std::int64_t>(tensor)), storage, offset,
                   is_stored, count * storage_bytes(storage)});
  };
  for (std::size_t i = 0; i < e_.size(); ++i)
    if (const Node& n = e_.node(static_cast<Expr>(i));
        needed_[i] && n.op == Op::kLoad && is_dense(n.a))
      add(static_cast<std::size_t>(n.index), static_cast<Storage>(n.integer), n.a, false);
  for (const Store& s : kernel_.stores) add(s.tensor, s.storage, s.offset, true);

  const std::string axis = axis_name(kernel_.outer_count - 1), n = number(count);
  const std::string index = e_.index_type() == Type::kI64 ? "long" : "int";
  const auto held = std::exchange(chunks_, {});
  const std::string apart = point(false);  // one point, its elements where they lie
  chunks_ = held;
  const std::string together = point(false);
  chunks_.clear();

  out_.clear();
  indent_ = 1;
  scopes_.assign(1, {});
  // Words of 16 bytes, or one of 8, between a chunk and the memory that it is of.
  constexpr std::int64_t kWord = 16;
  const auto copy = [&](const Chunk& c) {
    const std::string word = c.bytes < kWord ? "uint2*)" : "uint4*)";
    for (std::int64_t w = 0; w < std::max<std::int64_t>(c.bytes / kWord, 1); ++w) {
      const std::string at = "[" + number(w) + "]", here = "((" + word + c.name + ")" + at,
                        there = "((BP_GLOBAL " + std::string(c.is_stored ? "" : "const ") + word +
                                c.name + "_at)" + at;
      line(c.is_stored ? there + " = " + here + ";" : here + " = " + there + ";");
    }
  };
  for (const Chunk& c : all) {
    const std::string type(element_type(c.storage));
    line("BP_GLOBAL " + type + "* " + c.name + "_at;");
    // Halves are no type of variables everywhere.
    const bool is_half = c.storage == Storage::kF16;
    line((is_half ? "ushort" : type) + " " + c.name + (is_half ? "_bits[" : "[") + n +
         "] BP_ALIGNED_16;");
    if (is_half) line(type + "* " + c.name + " = (" + type + "*)" + c.name + "_bits;");
  }
  line("const " + index + " first = " + axis + ";");
  line("ulong bits = 0;");
  open("");
  for (const Chunk& c : all) {
    line(c.name + "_at = " + c.tensor + " + " + ref(c.offset, false) + ";");
    line("bits |= (ulong)" + c.name + "_at & " + number(std::min(c.bytes, kWord) - 1) + ";");
  }
  close();
  open("if (bits == 0)");
  for (const Chunk& c : all)
    if (!c.is_stored) copy(c);
  line("BP_UNROLL");
  open("for (int i = 0; i < " + n + "; ++i)");
  line("const " + index + " " + axis + " = first + i;");
  out_ += together;
  close();
  for (const Chunk& c : all)
    if (c.is_stored) copy(c);
  close();
  open("else");
  open("for (int i = 0; i < " + n + "; ++i)");
  line("const " + index + " " + axis + " = first + i;");
  out_ += apart;
  close();
  close();
  return out_;
}

}  // namespace backplane::kernelgen
