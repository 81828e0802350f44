// A compiled partition: compile or load from the disk cache, describe, execute.
#pragma once

#include <backplane/plugin.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugin/device.h"
#include "core/runtime/plugin/graph_arrays.h"

namespace backplane::runtime {

struct ExecutableRequest {
  std::span<const bp_io_request> inputs, outputs;
  std::uint32_t role = BP_ROLE_SINGLE;
  std::string graph_text;  // everything that the graph handed over says, for the cache key
  // What the plugin's error is about, where compile fails; may be null.
  std::vector<std::uint32_t>* out_faulty_nodes = nullptr;
};

class Executable {
 public:
  static Result<std::unique_ptr<Executable>> compile(Device& device, const GraphArrays& graph,
                                                     const ExecutableRequest& request);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  Device& device() const { return *device_; }
  std::string_view nodes() const { return nodes_; }  // GraphArrays::summary
  const bp_io_contract& input(std::size_t i) const { return inputs_[i]; }
  const bp_io_contract& output(std::size_t i) const { return outputs_[i]; }
  std::uint64_t internal_bytes() const { return internal_bytes_; }
  bool from_cache() const { return from_cache_; }
  // Takes the memory of outputs and gives back that of inputs while it runs.
  bool lends() const { return lends_; }
  // See GraphArrays::offsets: what else `dims` below hold, behind the values of the graph's
  // classes.
  const std::vector<ir::ValueId>& offsets() const { return offsets_; }
  Result<std::uint64_t> workspace_bytes(std::span<const std::int64_t> dims) const;
  Status execute(const bp_execute_args& args) const;

 private:
  Executable(Device* device, bp_executable* handle, const GraphArrays& graph)
      : device_(device), handle_(handle), nodes_(graph.summary()), offsets_(graph.offsets()) {
    device_->begin_use();
  }
  Status describe(std::size_t input_count, std::size_t output_count);
  // Whether the plugin answered the layouts that were asked for.
  Status check_layouts(const ExecutableRequest& request) const;

  Device* device_;
  bp_executable* handle_;
  std::string nodes_;
  std::vector<bp_io_contract> inputs_, outputs_;
  std::vector<ir::ValueId> offsets_;
  std::uint64_t workspace_bytes_ = 0, internal_bytes_ = 0;
  std::string requirement_;
  bool from_cache_ = false, lends_ = false;
  std::unique_ptr<std::mutex> one_call_;  // held over execute where the plugin asks for it
};

}  // namespace backplane::runtime
