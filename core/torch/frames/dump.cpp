#include "core/torch/frames/dump.h"

#include <cctype>
#include <fstream>
#include <system_error>

#include "core/base/log.h"
#include "core/torch/frames/frame_log.h"

namespace backplane::call {

namespace {

std::string file_name(const std::string& name) {
  std::string out;
  for (const char c : name)
    out += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' ? c : '_';
  return out;
}

}  // namespace

Dump::Dump(const std::string& folder, const std::string& function) {
  if (!folder.empty()) folder_ = std::filesystem::path(folder) / file_name(function);
}

void Dump::write(const std::filesystem::path& path, const std::string& text, bool appends) {
  if (!is_on()) return;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::ofstream file(path, appends ? std::ios::app : std::ios::trunc);
  file << text << (text.ends_with('\n') ? "" : "\n");
  file.flush();
  if (file) return;
  log(LogLevel::kWarning, "dump: " + path.string() + " cannot be written; no more files of " +
                              folder_.filename().string() + " are");
  folder_.clear();
}

void Dump::write_entry(const std::string& name, const Entry& entry, PyObject* original,
                       PyObject* modified, const std::string& break_reason) {
  if (!is_on()) return;
  const std::filesystem::path own = folder_ / file_name(name);
  std::string guards;
  for (const std::string& line : entry.guards_text()) guards += line + "\n";
  write(own / "guards.txt", guards);
  write(own / "graph.txt", entry.graph_table());
  write(own / "graph.ir", entry.graph_text());
  if (original) write(own / "original.txt", disassembly(original));
  if (modified) write(own / "modified.txt", disassembly(modified));
  if (!break_reason.empty()) write(own / "break.txt", break_reason + hint_for(break_reason));
}

void Dump::note(const char* topic, const std::string& text) {
  log_topic(topic, text);
  write(folder_ / (std::string(topic) + ".txt"), text, true);
}

void Dump::note_recompile(const std::string& name, std::span<const Entry* const> entries,
                          const guards::CallArguments& call) {
  if (entries.empty() || !(log_enabled("recompiles") || is_on())) return;
  note("recompiles", "RECOMPILE " + name + ": " + entries.front()->explain(call));
}

void log_graph(const std::string& name, const Entry& entry) {
  if (log_enabled("graph")) log_topic("graph", "TRACED GRAPH " + name + "\n" + entry.graph_table());
}

void log_guards(const std::string& name, const Entry& entry) {
  if (!log_enabled("guards")) return;
  std::string text = "GUARDS " + name;
  for (const std::string& line : entry.guards_text()) text += "\n  " + line;
  log_topic("guards", text);
}

}  // namespace backplane::call
