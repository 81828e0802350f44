#include "tools/arguments.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace backplane::tools {

namespace {

Status wrong(const std::string& message) { return {Code::kInvalidArgument, message}; }

}  // namespace

Status Arguments::parse(std::span<const std::string> arguments, std::string& out_file) const {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("-") || argument == "-") {
      if (!out_file.empty()) return wrong("more than one file");
      out_file = argument;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (const auto found = switches_.find(name); found != switches_.end()) {
      if (equals != std::string::npos) return wrong(name + " takes no value");
      *found->second = true;
      continue;
    }
    const auto found = values_.find(name);
    if (found == values_.end()) return wrong("unknown option " + name);
    if (equals == std::string::npos && i + 1 == arguments.size())
      return wrong(name + " wants a value");
    const std::string value =
        equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (const std::string fault = found->second(value); !fault.empty())
      return wrong(std::string(name).append(" ").append(value).append(": ").append(fault));
  }
  return {};
}

Arguments::Take take_number(std::int64_t& out, std::int64_t least) {
  return [&out, least](std::string_view value) -> std::string {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
    if (error == std::errc() && end == value.data() + value.size() && out >= least) return {};
    return "want a whole number of at least " + std::to_string(least);
  };
}

Arguments::Take take_text(std::string& out) {
  return [&out](std::string_view value) -> std::string {
    out = value;
    return {};
  };
}

bool asks_for_help(std::span<const std::string> arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--help" || argument == "-h";
  });
}

}  // namespace backplane::tools
