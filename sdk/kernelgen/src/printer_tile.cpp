// Points whose operands lie along another axis than their results: a group takes a tile through its
// memory, so that both sides are read and written along the memory.
#include <algorithm>
#include <numeric>

#include "functions.hpp"
#include "printer.hpp"
#include "printer_names.hpp"

namespace backplane::kernelgen {
namespace {

constexpr std::int64_t kShortest = 16;         // of both axes
constexpr std::int64_t kMostBytes = 36 << 10;  // of a group's memory

// An odd number of words of four bytes: columns lie in all banks.
std::int64_t pitch(std::int64_t side, std::int64_t bytes) {
  return side + (bytes == 1 ? 4 : bytes == 2 ? 2 : 1);
}

// Elements of an access along `axis` at this offset; 0: it does not lie along the axis.
std::int64_t common_chunk(const Expressions& e, Expr offset, std::size_t axis, std::int64_t most) {
  std::int64_t common = e.extents()[axis];
  for (std::size_t a = 0; a < e.extents().size(); ++a) {
    std::int64_t stride = 0;
    if (!e.stride(offset, a, stride) || (a == axis && stride != 1)) return 0;
    if (a != axis) common = std::gcd(common, stride);
  }
  while (common % most != 0) most /= 2;
  return most;
}

}  // namespace

std::vector<Expr> PointPrinter::needed_loads() const {
  std::vector<Expr> loads;
  for (std::size_t i = 0; i < e_.size(); ++i)
    if (needed_[i] && e_.node(static_cast<Expr>(i)).op == Op::kLoad)
      loads.push_back(static_cast<Expr>(i));
  return loads;
}

std::optional<PointPrinter::Tile> PointPrinter::plan_tile(std::int64_t group) const {
  constexpr std::int64_t kMostElements = 8;
  Tile tile;
  tile.group = group;
  if (kernel_.outer_count < 2 || e_.extents().size() > kernel_.outer_count) return std::nullopt;
  tile.to = kernel_.outer_count - 1;
  tile.from = kNoAxis;
  tile.chunk = tile.read = has_words(dialect_) ? kMostElements : 1;
  const auto reduce_chunk = [&](std::int64_t& chunk, Expr offset, Storage storage,
                                std::size_t axis) {
    chunk = std::min(chunk, common_chunk(e_, offset, axis,
                                         std::min(kMostElements, 16 / storage_bytes(storage))));
  };
  for (const Store& s : kernel_.stores) {
    if (s.mode != Store::kPlain || common_chunk(e_, s.offset, tile.to, 1) == 0) return std::nullopt;
    reduce_chunk(tile.chunk, s.offset, s.storage, tile.to);
  }
  if (e_.extents()[tile.to] < kShortest) return std::nullopt;
  std::int64_t bytes = 0;
  for (const Expr load : needed_loads()) {
    const Node& n = e_.node(load);
    const auto storage = static_cast<Storage>(n.integer);
    for (const Store& s : kernel_.stores)
      if (s.tensor == static_cast<std::size_t>(n.index)) return std::nullopt;
    std::int64_t along = 0;
    if (!e_.stride(n.a, tile.to, along) || along == 0) continue;
    if (along == 1) {
      if (common_chunk(e_, n.a, tile.to, 1) != 0) reduce_chunk(tile.chunk, n.a, storage, tile.to);
      continue;
    }
    for (std::size_t a = 0; a < tile.to; ++a) {
      if (e_.extents()[a] < kShortest || common_chunk(e_, n.a, a, 1) == 0) continue;
      if (tile.from == kNoAxis) tile.from = a;
      if (tile.from != a) continue;
      bytes += storage_bytes(storage);
      reduce_chunk(tile.read, n.a, storage, a);
      tile.loads.push_back(load);
    }
  }
  if (tile.loads.empty()) return std::nullopt;
  for (tile.side = 64; tile.side >= 32; tile.side /= 2)
    if (tile.side * pitch(tile.side, 1) * bytes <= kMostBytes) return tile;
  return std::nullopt;
}

std::int64_t PointPrinter::tile_count(const Tile& tile) const {
  std::int64_t count = 1;
  for (std::size_t a = 0; a < e_.extents().size(); ++a) {
    const std::int64_t side = a == tile.to || a == tile.from ? tile.side : 1;
    count *= (e_.extents()[a] + side - 1) / side;
  }
  return count;
}

// `body` at every `chunk` elements of the tile along one axis, where they are inside: `to` and
// `from` name variables that `begin` declares, with `line` and `place`.
void PointPrinter::tile_loop(const Tile& tile, std::int64_t chunk, const std::string& begin,
                             const std::string& to, const std::function<void()>& body) {
  const std::int64_t count = tile.side * tile.side / chunk,
                     steps = (count + tile.group - 1) / tile.group;
  line("BP_UNROLL");
  open("for (int step = 0; step < " + number(steps) + "; ++step)");
  line("const int item = step * " + number(tile.group) + " + (int)BP_LOCAL_ID;");
  line("const int line = item / " + number(tile.side / chunk) + ", place = item % " +
       number(tile.side / chunk) + " * " + number(chunk) + ";");
  line(begin);
  std::string inside;
  const auto check = [&](const std::string& what, std::int64_t limit, std::int64_t whole) {
    if (limit % whole != 0) inside += (inside.empty() ? "" : " && ") + what + " < " + number(limit);
  };
  check("item", count, tile.group);
  check(to, e_.extents()[tile.to], tile.side);
  check(axis_name(tile.from), e_.extents()[tile.from], tile.side);
  open(inside.empty() ? "" : "if (" + inside + ")");
  body();
  close();
  close();
}

std::string PointPrinter::tile_text(const Tile& tile, bool in_words) {
  const std::string index = e_.index_type() == Type::kI64 ? "const long " : "const int ";
  const std::string to = axis_name(tile.to), from = axis_name(tile.from);
  out_.clear();
  scopes_.assign(1, {});
  chunks_.clear();
  // Along the axis that the operands lie along, into lines of the tile.
  const std::int64_t read = in_words ? tile.read : 1;
  tile_loop(
      tile, read, index + to + " = begin_to + line, " + from + " = begin_from + place;", to, [&] {
        for (std::size_t i = 0; i < tile.loads.size(); ++i) {
          const Node& n = e_.node(tile.loads[i]);
          const auto storage = static_cast<Storage>(n.integer);
          const std::int64_t bytes = storage_bytes(storage);
          const std::string which = number(static_cast<std::int64_t>(i)), element(word_type(bytes));
          open("");
          line("BP_GLOBAL const " + std::string(element_type(storage)) +
               "* at = " + variable("t", n.index) + " + " + ref(n.a, false) + ";");
          line(element + " held[" + number(read) + "] BP_ALIGNED_16;");
          copy_words(bytes, read, "held", false);
          line("BP_UNROLL");
          open("for (int i = 0; i < " + number(read) + "; ++i)");
          line("((BP_LOCAL_AS " + element + "*)tile" + which + ")[line * " +
               number(pitch(tile.side, bytes)) + " + place + i] = held[i];");
          close();
          close();
        }
      });
  line("BP_BARRIER;");
  // Along the axis that the results lie along.
  for (std::size_t i = 0; i < tile.loads.size(); ++i) {
    const Node& n = e_.node(tile.loads[i]);
    const std::int64_t bytes = storage_bytes(static_cast<Storage>(n.integer));
    chunks_[chunk_of(static_cast<std::size_t>(n.index), n.a)] = {
        "tile" + number(static_cast<std::int64_t>(i)),
        "(place + i) * " + number(pitch(tile.side, bytes)) + " + line"};
  }
  group_chunks_.clear();
  plan_ = {};
  plan_.columns = true;  // chunks along the last outer axis
  plan_.chunk = in_words ? tile.chunk : 1;
  if (plan_.chunk > 1) {
    for (const Expr load : needed_loads())
      if (const Node& n = e_.node(load); common_chunk(e_, n.a, tile.to, 1) != 0)
        add_chunk(static_cast<std::size_t>(n.index), static_cast<Storage>(n.integer), n.a, false);
    for (const Store& s : kernel_.stores) add_chunk(s.tensor, s.storage, s.offset, true);
  }
  tile_loop(tile, plan_.chunk,
            index + "first = begin_to + place, " + from + " = begin_from + line;", "first", [&] {
              for (const Chunk& c : group_chunks_) {
                declare_chunk(c, plan_.chunk);
                if (!c.is_stored) copy_chunk(c);
              }
              columns_of_chunk([&] {
                for (const Store& s : kernel_.stores) store(s, false);
              });
              for (const Chunk& c : group_chunks_)
                if (c.is_stored) copy_chunk(c);
            });
  return out_;
}

std::string PointPrinter::tile(const Tile& tile) {
  const std::string index = e_.index_type() == Type::kI64 ? "long" : "int";
  std::int64_t bytes = 0;
  std::string tiles;
  for (std::size_t i = 0; i < tile.loads.size(); ++i) {
    const auto storage = static_cast<Storage>(e_.node(tile.loads[i]).integer);
    const std::string type(element_type(storage));
    tiles += "  BP_LOCAL_AS " + type + "* tile" + number(static_cast<std::int64_t>(i)) +
             " = (BP_LOCAL_AS " + type + "*)(shared + " + number(bytes / 8) + ");\n";
    bytes +=
        (tile.side * pitch(tile.side, storage_bytes(storage)) * storage_bytes(storage) + 7) / 8 * 8;
  }
  std::string out = "  BP_LOCAL long shared[" + number(bytes / 8) + "];\n" + tiles + "  " + index +
                    " rest = (" + index + ")BP_GROUP_ID;\n";
  const auto take = [&](const std::string& name, std::int64_t count, const std::string& times) {
    out += "  const " + index + " " + name + " = rest % " + number(count) + times +
           ";\n  rest /= " + number(count) + ";\n";
  };
  const auto tiles_along = [&](std::size_t a) {
    return (e_.extents()[a] + tile.side - 1) / tile.side;
  };
  take("begin_to", tiles_along(tile.to), " * " + number(tile.side));
  take("begin_from", tiles_along(tile.from), " * " + number(tile.side));
  for (std::size_t a = tile.to; a-- > 0;)
    if (a != tile.from) take(axis_name(a), e_.extents()[a], "");
  const std::string together = tile_text(tile, true);
  if (tile.chunk == 1 && tile.read == 1) return out + together;
  const auto held = group_chunks_;
  out_.clear();
  scopes_.assign(1, {});
  line("ulong bits = 0;");
  open("");
  for (std::size_t a = 0; a < e_.extents().size(); ++a)
    line("const " + index + " " + axis_name(a) + " = 0;");
  for (const Chunk& c : held)
    check_alignment_of(c.tensor, c.offset, tile.chunk * storage_bytes(c.storage));
  for (const Expr load : tile.loads) {
    const Node& n = e_.node(load);
    check_alignment_of(static_cast<std::size_t>(n.index), n.a,
                       tile.read * storage_bytes(static_cast<Storage>(n.integer)));
  }
  close();
  out += out_ + "  if (bits == 0) {\n" + together + "  } else {\n";
  out += tile_text(tile, false) + "  }\n";
  chunks_.clear();
  return out;
}

}  // namespace backplane::kernelgen
