// The two tables beside the bytecode: which handler covers which code units, and source positions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::cpython {

// A position of the source; -1 where unknown. Lines from 1, columns from 0 in bytes of UTF-8.
struct Location {
  int line = -1, end_line = -1, column = -1, end_column = -1;
  bool operator==(const Location&) const = default;
};

// In code units; `end` is exclusive.
struct HandlerEntry {
  int begin = 0, end = 0, target = 0, depth = 0;
  bool push_lasti = false;
};

// Nothing where the bytes are no such table.
std::optional<std::vector<HandlerEntry>> read_handlers(std::string_view table);
std::string write_handlers(const std::vector<HandlerEntry>& entries);

// The position of each code unit. Nothing where the bytes are no such table for `unit_count` units.
std::optional<std::vector<Location>> read_locations(std::string_view table, int first_line,
                                                    std::size_t unit_count);

class LocationWriter {
 public:
  explicit LocationWriter(int first_line) : line_(first_line) {}
  // The next instruction: its position and its size in code units.
  void add(const Location& location, int units);
  std::string take() &&;

 private:
  void flush();
  void write_entry(const Location& location, int units);

  std::string table_;
  int line_;
  Location pending_;
  int pending_units_ = 0;
};

}  // namespace backplane::cpython
