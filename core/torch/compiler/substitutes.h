// What runs instead of a compiled function at sizes at which a plugin answered `execute` with
// UNSUPPORTED, against its claim: the same graph, with the nodes of that partition on the CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace backplane::compiler {

class CompiledFunction;

// How often a plugin did so, since the process started.
std::uint64_t refused_calls();
void count_refused_call();

// Any thread.
class Substitutes {
 public:
  using Function = std::shared_ptr<CompiledFunction>;

  bool is_empty() const { return is_empty_.load(std::memory_order_relaxed); }
  Function find(std::span<const std::int64_t> sizes) const;  // null: none
  Function find_for(std::uint32_t partition) const;          // null: none is compiled yet
  // At these sizes too. Gives the one that is kept: that of the thread that was first.
  Function add(std::uint32_t partition, Function made, std::span<const std::int64_t> sizes);

 private:
  std::atomic<bool> is_empty_{true};
  mutable std::mutex mutex_;
  std::map<std::uint32_t, Function> by_partition_;
  std::map<std::vector<std::int64_t>, Function> by_sizes_;
};

}  // namespace backplane::compiler
