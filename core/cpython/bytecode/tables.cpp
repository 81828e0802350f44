#include "core/cpython/bytecode/tables.h"

#include <algorithm>
#include <utility>

#include "core/cpython/bytecode/opcodes.h"

namespace backplane::cpython {

namespace {

constexpr unsigned kMaxEntryUnits = 8;
constexpr unsigned kFirstOneLine = 10, kNoColumns = 13, kLong = 14, kNone = 15;

// Exception table: six bits a byte, most significant first; bit 7 marks the start of an entry.
class HandlerReader {
 public:
  explicit HandlerReader(std::string_view table) : table_(table) {}
  bool at_end() const { return at_ >= table_.size(); }

  std::optional<int> next() {
    unsigned value = 0;
    for (int length = 0; length < 6; ++length) {
      if (at_end()) return std::nullopt;
      const auto byte = static_cast<unsigned char>(table_[at_++]);
      value = value << 6 | (byte & 63u);
      if (!(byte & 64u)) return static_cast<int>(value);
    }
    return std::nullopt;
  }

 private:
  std::string_view table_;
  std::size_t at_ = 0;
};

void append_handler_number(std::string& out, int number, bool starts_entry) {
  const auto value = static_cast<unsigned>(number);
  unsigned shift = 0;
  while ((value >> shift) >= 64) shift += 6;
  unsigned mark = starts_entry ? 128u : 0u;
  for (;; shift -= 6) {
    out += static_cast<char>(mark | ((value >> shift) & 63u) | (shift ? 64u : 0u));
    mark = 0;
    if (shift == 0) return;
  }
}

// Line table: six bits a byte, least significant first.
class LocationReader {
 public:
  explicit LocationReader(std::string_view table) : table_(table) {}
  bool at_end() const { return at_ >= table_.size(); }

  std::optional<unsigned> byte() {
    if (at_end()) return std::nullopt;
    return static_cast<unsigned char>(table_[at_++]);
  }
  std::optional<unsigned> number() {
    unsigned value = 0, shift = 0;
    for (;;) {
      const auto next = byte();
      if (!next || shift > 30) return std::nullopt;
      value |= (*next & 63u) << shift;
      if (!(*next & 64u)) return value;
      shift += 6;
    }
  }
  std::optional<int> signed_number() {
    const auto value = number();
    if (!value) return std::nullopt;
    const int magnitude = static_cast<int>(*value >> 1);
    return *value & 1u ? -magnitude : magnitude;
  }

 private:
  std::string_view table_;
  std::size_t at_ = 0;
};

void append_number(std::string& out, unsigned value) {
  for (; value >= 64; value >>= 6) out += static_cast<char>(64u | (value & 63u));
  out += static_cast<char>(value);
}

void append_signed(std::string& out, int value) {
  append_number(out, value < 0 ? (static_cast<unsigned>(-value) << 1) | 1u
                               : static_cast<unsigned>(value) << 1);
}

// The body of one entry; `line` is the running line number.
std::optional<Location> read_entry(LocationReader& reader, unsigned kind, int& line) {
  Location location;
  if (kind == kNone) return location;
  if (kind == kLong) {
    const auto delta = reader.signed_number();
    const auto lines = reader.number();
    const auto column = reader.number();
    const auto end_column = reader.number();
    if (!delta || !lines || !column || !end_column) return std::nullopt;
    line += *delta;
    return Location{line, line + static_cast<int>(*lines), static_cast<int>(*column) - 1,
                    static_cast<int>(*end_column) - 1};
  }
  if (kind == kNoColumns) {
    const auto delta = reader.signed_number();
    if (!delta) return std::nullopt;
    line += *delta;
    return Location{line, line, -1, -1};
  }
  if (kind >= kFirstOneLine) {
    const auto column = reader.byte();
    const auto end_column = reader.byte();
    if (!column || !end_column) return std::nullopt;
    line += static_cast<int>(kind - kFirstOneLine);
    return Location{line, line, static_cast<int>(*column), static_cast<int>(*end_column)};
  }
  const auto low = reader.byte();
  if (!low) return std::nullopt;
  const int column = static_cast<int>(kind << 3 | *low >> 4);
  return Location{line, line, column, column + static_cast<int>(*low & 15u)};
}

}  // namespace

std::optional<std::vector<HandlerEntry>> read_handlers(std::string_view table) {
  std::vector<HandlerEntry> entries;
  HandlerReader reader(table);
  while (!reader.at_end()) {
    const auto begin = reader.next();
    const auto size = reader.next();
    const auto target = reader.next();
    const auto depth = reader.next();
    if (!begin || !size || !target || !depth) return std::nullopt;
    entries.push_back({*begin, *begin + *size, *target, *depth >> 1, (*depth & 1) != 0});
  }
  return entries;
}

std::string write_handlers(const std::vector<HandlerEntry>& entries) {
  std::string table;
  for (const HandlerEntry& entry : entries) {
    append_handler_number(table, entry.begin, true);
    append_handler_number(table, entry.end - entry.begin, false);
    append_handler_number(table, entry.target, false);
    append_handler_number(table, entry.depth << 1 | (entry.push_lasti ? 1 : 0), false);
  }
  return table;
}

std::optional<std::vector<Location>> read_locations(std::string_view table, int first_line,
                                                    std::size_t unit_count) {
  std::vector<Location> locations;
  locations.reserve(unit_count);
  LocationReader reader(table);
  int line = first_line;
  while (!reader.at_end()) {
    const auto head = reader.byte();
    if (!head || !(*head & 128u)) return std::nullopt;
    const auto location = read_entry(reader, *head >> 3 & 15u, line);
    if (!location) return std::nullopt;
    locations.insert(locations.end(), (*head & 7u) + 1, *location);
  }
  // A table may be shorter: what is left has no position.
  if (locations.size() > unit_count) return std::nullopt;
  locations.resize(unit_count);
  return locations;
}

void LocationWriter::add(const Location& location, int units) {
  if (!merges_locations() || location != pending_) flush();
  pending_ = location;
  pending_units_ += units;
}

std::string LocationWriter::take() && {
  flush();
  return std::move(table_);
}

void LocationWriter::flush() {
  while (pending_units_ > 0) {
    const int units = std::min(pending_units_, static_cast<int>(kMaxEntryUnits));
    write_entry(pending_, units);
    pending_units_ -= units;
  }
}

// The form that CPython's compiler chooses, so that tables come out as it wrote them.
void LocationWriter::write_entry(const Location& location, int units) {
  const auto head = [&](unsigned kind) {
    table_ += static_cast<char>(128u | kind << 3 | static_cast<unsigned>(units - 1));
  };
  if (location.line < 0) {
    head(kNone);
    return;
  }
  const int delta = location.line - line_;
  const bool one_line = location.end_line == location.line;
  if (location.column < 0 || location.end_column < 0) {
    if (one_line || location.end_line < 0) {
      head(kNoColumns);
      append_signed(table_, delta);
      line_ = location.line;
      return;
    }
  } else if (one_line) {
    const int width = location.end_column - location.column;
    if (delta == 0 && location.column < 80 && width >= 0 && width < 16) {
      head(static_cast<unsigned>(location.column) >> 3);
      table_ += static_cast<char>((location.column & 7) << 4 | width);
      return;
    }
    if (delta >= 0 && delta < 3 && location.column < 128 && location.end_column < 128) {
      head(kFirstOneLine + static_cast<unsigned>(delta));
      table_ += static_cast<char>(location.column);
      table_ += static_cast<char>(location.end_column);
      line_ = location.line;
      return;
    }
  }
  head(kLong);
  append_signed(table_, delta);
  append_number(table_, static_cast<unsigned>(location.end_line - location.line));
  append_number(table_, static_cast<unsigned>(location.column + 1));
  append_number(table_, static_cast<unsigned>(location.end_column + 1));
  line_ = location.line;
}

}  // namespace backplane::cpython
