// Command lines: "--name=value" or "--name value", switches, one file.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace backplane::tools {

class Arguments {
 public:
  // `take` stores a value and says what is wrong with it; empty: nothing.
  using Take = std::function<std::string(std::string_view value)>;
  void add_value(std::string name, Take take) { values_[std::move(name)] = std::move(take); }
  void add_switch(std::string name, bool& out) { switches_[std::move(name)] = &out; }

  // The file is the one argument without "--"; "-" counts.
  Status parse(std::span<const std::string> arguments, std::string& out_file) const;

 private:
  std::map<std::string, Take, std::less<>> values_;
  std::map<std::string, bool*, std::less<>> switches_;
};

// Stores a whole number that is at least `least`.
Arguments::Take take_number(std::int64_t& out, std::int64_t least);
Arguments::Take take_text(std::string& out);

// "--help" or "-h" among them.
bool asks_for_help(std::span<const std::string> arguments);

}  // namespace backplane::tools
