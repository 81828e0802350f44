// backplane-opt: reads a graph as text, runs passes, writes it as text.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include "core/ir/text.h"
#include "core/ir/verifier.h"
#include "core/passes/pass.h"

namespace backplane {
namespace {

constexpr const char* kUsage =
    "usage: backplane-opt FILE|- [--pipeline=a,b] [--print-after-all] [--verify-only]\n"
    "       backplane-opt --list-passes\n";

struct Options {
  std::string file;
  std::string pipeline;
  bool print_after_all = false;
  bool verify_only = false;
  bool list_passes = false;
};

bool parse_options(int count, char** arguments, Options& out_options) {
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    constexpr std::string_view kPipeline = "--pipeline=";
    if (argument.starts_with(kPipeline)) {
      out_options.pipeline = argument.substr(kPipeline.size());
    } else if (argument == "--print-after-all") {
      out_options.print_after_all = true;
    } else if (argument == "--verify-only") {
      out_options.verify_only = true;
    } else if (argument == "--list-passes") {
      out_options.list_passes = true;
    } else if (argument.size() > 1 && argument[0] == '-') {
      std::cerr << "backplane-opt: unknown option " << argument << "\n";
      return false;
    } else if (!out_options.file.empty()) {
      std::cerr << "backplane-opt: more than one file\n";
      return false;
    } else {
      out_options.file = argument;
    }
  }
  return out_options.list_passes || !out_options.file.empty();
}

// stdio: reading a folder through a C++ stream throws.
Result<std::string> read(const std::string& file) {
  std::FILE* stream = file == "-" ? stdin : std::fopen(file.c_str(), "rb");
  if (stream == nullptr) {
    return Status(Code::kNotFound, "Cannot open \"" + file + "\": " + std::strerror(errno) + ".");
  }
  std::string text;
  char buffer[1 << 16];
  for (std::size_t count; (count = std::fread(buffer, 1, sizeof buffer, stream)) > 0;) {
    text.append(buffer, count);
  }
  const int error = std::ferror(stream) != 0 ? errno : 0;
  if (stream != stdin) std::fclose(stream);
  if (error != 0) {
    return Status(Code::kNotFound, "Cannot read \"" + file + "\": " + std::strerror(error) + ".");
  }
  return text;
}

Status run(const Options& options) {
  if (options.list_passes) {
    for (const passes::PassInfo& pass : passes::all_passes()) {
      std::cout << pass.name << std::string(20 - std::min<std::size_t>(pass.name.size(), 19), ' ')
                << pass.summary << "\n";
    }
    return {};
  }
  BP_ASSIGN_OR_RETURN(const std::string text, read(options.file));
  BP_ASSIGN_OR_RETURN(ir::Graph graph, ir::parse(text));
  if (options.verify_only) return ir::verify(graph);
  BP_RETURN_IF_ERROR(passes::run_pipeline(
      graph, options.pipeline, [&](std::string_view pass, const ir::Graph& after) {
        if (options.print_after_all) {
          std::cout << "// after " << pass << "\n" << ir::print(after) << "// -----\n";
        }
      }));
  std::cout << ir::print(graph);
  return {};
}

}  // namespace
}  // namespace backplane

int main(int count, char** arguments) {
  backplane::Options options;
  if (!backplane::parse_options(count, arguments, options)) {
    std::cerr << backplane::kUsage;
    return 2;
  }
  const backplane::Status status = backplane::run(options);
  if (!status.ok()) {
    const std::string place = options.file == "-" ? "standard input" : options.file;
    std::cerr << "backplane-opt: " << place << ": " << status.to_string() << "\n";
    return 1;
  }
  std::cout.flush();
  return std::cout ? 0 : 1;
}
