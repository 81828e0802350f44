// Spans of a run, and what devices did meanwhile, as a Chrome trace: BACKPLANE_TRACE=<file.json>
// writes it when the process ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::runtime {

class Device;

// Where time went, by span name; longest first.
struct TraceTotal {
  std::string name;
  std::uint64_t count = 0, total_ns = 0;
};

// Installs the trace hooks when BACKPLANE_TRACE is set; called once, before plugins are loaded.
void start_trace_from_environment();
// Installs the hooks; spans are collected in memory from now on. Thread-safe.
void start_trace();
void stop_trace();
std::vector<TraceTotal> trace_totals();
// Forgets the spans collected so far.
void clear_trace();

// An open device whose plugin takes profiles: takes one while spans are collected. Before it closes
// it is removed, with what it did until then kept.
void add_profiled(Device* device);
void remove_profiled(Device* device);

// False when the file cannot be written.
bool write_trace(const std::string& path);

}  // namespace backplane::runtime
