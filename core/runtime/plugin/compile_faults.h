// Nodes that a device claimed and then failed to compile. Kept as long as the device, so that the
// next graph with such a node does not fail over it again.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace backplane::runtime {

// Any thread.
class CompileFaults {
 public:
  // `status`: what its plugin said.
  void add(const ir::Graph& graph, ir::NodeId node, const Status& status);
  // Why such a node is not to be compiled: one with the same operator, attributes and types, or,
  // once a second one of that operator and those dtypes failed, any of these; but a plugin that
  // calls nodes unsupported knows the operator and speaks of their form. Empty: nothing is known
  // against it.
  std::string find(const ir::Graph& graph, ir::NodeId node) const;
  bool is_empty() const;
  void clear();

 private:
  struct Kind {
    std::set<std::string> members;
    std::size_t broken = 0;  // of them
    std::string text;        // of the first
  };
  mutable std::mutex mutex_;
  std::map<std::string, Kind> by_kind_;
};

}  // namespace backplane::runtime
