#include "tools/conformance_command.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <istream>
#include <ostream>
#include <unordered_map>

#include "core/base/json.h"
#include "sdk/conformance/src/kit.h"
#include "tools/arguments.h"

namespace backplane::tools {
namespace {

using conformance::Case;
using conformance::Outcome;

constexpr const char* kUsage =
    "usage: backplane-conformance PLUGIN.so --oracle FILE --corpus FOLDER [--device N] [--list]\n"
    "Runs the cases whose ids are on standard input. backplane certify is the way to use it.\n"
    "--oracle    the library of the plugin `reference`\n"
    "--list      writes all ids with their levels instead\n"
    "--abi       writes the version that the kit speaks instead\n";

void write_outcome(std::ostream& out, const std::string& id, const Outcome& outcome,
                   double seconds) {
  char numbers[96];
  const double share = std::isfinite(outcome.share_of_bound) ? outcome.share_of_bound : 1e9;
  std::snprintf(numbers, sizeof numbers, "\"share\":%.6g,\"seconds\":%.6f", share, seconds);
  out << "{\"end\":" << json_string(id)
      << ",\"verdict\":" << json_string(conformance::verdict_name(outcome.verdict)) << ","
      << numbers;
  if (!outcome.text.empty()) out << ",\"text\":" << json_string(outcome.text);
  if (!outcome.operators.empty()) out << ",\"operators\":" << json_string(outcome.operators);
  if (!outcome.graph.empty()) out << ",\"graph\":" << json_string(outcome.graph);
  out << "}" << std::endl;  // the reader waits for each line
}

}  // namespace

int conformance_command(std::span<const std::string> arguments, std::istream& ids,
                        std::ostream& out, std::ostream& error) {
  if (asks_for_help(arguments)) {
    out << kUsage;
    return 0;
  }
  conformance::Files files;
  bool list = false, abi = false;
  std::int64_t device = 0;
  Arguments known;
  known.add_value("--oracle", take_text(files.oracle));
  known.add_value("--corpus", take_text(files.corpus));
  known.add_value("--device", take_number(device, 0));
  known.add_switch("--list", list);
  known.add_switch("--abi", abi);
  Status status = known.parse(arguments, files.plugin);
  if (status.ok() && (files.plugin.empty() || files.oracle.empty() || files.corpus.empty()))
    status = Status(Code::kInvalidArgument, "a plugin, --oracle and --corpus are needed");
  if (!status.ok()) {
    error << "backplane-conformance: " << status.message() << "\n" << kUsage;
    return 2;
  }
  if (abi) {
    out << BP_VERSION_MAJOR(BP_ABI_VERSION) << "." << BP_VERSION_MINOR(BP_ABI_VERSION) << "\n";
    out.flush();
    return 0;
  }
  files.device = static_cast<std::uint32_t>(device);
  const auto corpus = conformance::Corpus::read(files.corpus);
  if (!corpus.ok()) {
    error << "backplane-conformance: " << corpus.status().to_string() << "\n";
    return 2;
  }
  const std::vector<Case> cases = conformance::all_cases(*corpus);
  conformance::Kit kit(files);
  if (list) {
    if (const auto oracle = kit.oracle(); !oracle.ok()) {
      error << "backplane-conformance: the oracle: " << oracle.status().message() << "\n";
      return 2;
    }
    for (const Case& one : cases)
      out << "{\"id\":" << json_string(one.id) << ",\"level\":" << one.level
          << ",\"door\":" << json_string(conformance::door_name(one.door)) << "}\n";
    out.flush();
    return 0;
  }
  std::unordered_map<std::string_view, const Case*> by_id;
  for (const Case& one : cases) by_id[one.id] = &one;
  for (std::string id; std::getline(ids, id);) {
    const auto found = by_id.find(id);
    if (found == by_id.end()) {
      error << "backplane-conformance: there is no case " << id << "\n";
      return 2;
    }
    out << "{\"begin\":" << json_string(id) << "}" << std::endl;
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = found->second->run(kit);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    write_outcome(out, id, outcome, seconds.count());
  }
  return 0;
}

}  // namespace backplane::tools
