// Claims, and graphs as programs of reference kernels.
#pragma once

#include <backplane/sdk/program.hpp>

#include <memory>

namespace backplane::reference {

sdk::Claims claim_graph(const sdk::GraphView& graph);

// What compile decides beside the kernels: how inputs are laid out.
std::vector<bp_layout> choose_layouts(const sdk::Subgraph& graph,
                                      const sdk::CompileOptions& options);

// A program; layouts may be empty (all strided). A transposed weight in an opaque layout is read
// by the product itself, so its transposition has no step.
std::shared_ptr<sdk::ProgramExecutable> make_program(const sdk::Subgraph& graph,
                                                     std::vector<bp_layout> layouts);

// Whether the ranges of a call hold the tensors that the program reads and writes.
sdk::Status check_ranges(sdk::ProgramExecutable& program, const sdk::Execution& call);

}  // namespace backplane::reference
