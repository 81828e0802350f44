// A graph as generated kernels: which nodes they take, and the executable that they make.
#pragma once

#include <backplane/kernels/target.hpp>
#include <backplane/sdk/program.hpp>

#include <optional>

namespace backplane::kernels {

// Why the kernels do not take the node; nothing where they do.
std::optional<sdk::Refusal> refuse(const Facts& facts, const sdk::NodeView& node);
sdk::Claims claims(const Facts& facts, const sdk::GraphView& graph);

class SharedKernels;

// Everything but how a call's launches are queued: the device's executable derives from it, and
// runs each call with a Launcher of its own.
class GeneratedProgram : public sdk::ProgramExecutable {
 public:
  // What there is to say against the graph, before anything of it is made.
  static Status check(const Facts& facts, const sdk::Subgraph& graph,
                      const sdk::CompileOptions& options);
  GeneratedProgram(std::shared_ptr<Target> target, const sdk::Subgraph& graph,
                   const sdk::CompileOptions& options);

  Result<std::uint64_t> workspace_bytes(std::span<const std::int64_t> dims) override;
  // Kernels for the call's sizes are built: the first call takes long.
  Status prepare(const sdk::Execution& call);

 private:
  struct Plan {
    std::vector<sdk::Step> steps;
    sdk::KernelFactory factory;
    std::vector<bp_layout> layouts;
    std::shared_ptr<SharedKernels> shared;  // null: launches have their programs
  };
  static Plan plan(const std::shared_ptr<Target>& target, const sdk::Subgraph& graph,
                   const sdk::CompileOptions& options);
  GeneratedProgram(std::shared_ptr<Target> target, const sdk::Subgraph& graph, Plan plan);
  Status build();

  std::shared_ptr<Target> target_;
  std::shared_ptr<SharedKernels> shared_;
};

}  // namespace backplane::kernels
