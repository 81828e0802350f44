#include "core/runtime/plan/replay.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/ir/extract.h"
#include "core/ir/text.h"

namespace backplane::runtime {
namespace {

// The same partition, the same file.
std::string file_name(const std::string& graph, const std::string& device,
                      const std::string& text) {
  std::string name = graph + "-" + device + "-" + std::to_string(std::hash<std::string>()(text));
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_') c = '_';
  return name + ".bpir";
}

// Null where nothing is kept.
const char* replay_folder() {
  const char* const folder = std::getenv("BACKPLANE_REPLAY");
  return folder != nullptr && *folder != 0 ? folder : nullptr;
}

}  // namespace

bool keeps_failures() { return replay_folder() != nullptr; }

std::string keep_for_replay(const FailedPartition& failed) {
  const char* const folder = replay_folder();
  if (folder == nullptr) return {};
  const auto part =
      ir::extract(failed.graph, failed.nodes, failed.inputs, failed.outputs, failed.class_values);
  if (!part.ok()) return "; no file for replay: " + part.status().message();
  const std::string text = ir::print(*part);
  std::string said = failed.message;
  for (char& c : said)
    if (c == '\n') c = ' ';
  const std::filesystem::path path =
      std::filesystem::path(folder) / file_name(failed.graph.name, failed.device, text);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::ofstream file(path);
  file << "// " << failed.device << ": " << said << "\n" << text;
  file.close();
  if (!file) return "; no file for replay: " + path.string() + " cannot be written";
  return "; again: backplane replay " + path.string();
}

}  // namespace backplane::runtime
