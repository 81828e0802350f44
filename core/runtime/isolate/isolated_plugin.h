// A plugin whose library is in a worker: its calls, and what becomes of them when the worker ends.
#pragma once

#include <backplane/plugin.h>
#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/host/process_state.h"
#include "core/runtime/isolate/channel.h"
#include "core/runtime/isolate/shared_memory.h"
#include "core/runtime/isolate/wire.h"
#include "core/runtime/isolate/worker_process.h"

namespace backplane::runtime {

// Never destroyed: a program may end, and its threads call, in any order.
class IsolatedPlugin {
 public:
  // Starts a worker, which loads the library as any process does. The error says why it refused, or
  // how it ended over it. Later workers take the same content only.
  static Result<IsolatedPlugin*> start(const std::string& name, const std::string& path,
                                       const std::string& sha256);
  IsolatedPlugin(const IsolatedPlugin&) = delete;
  IsolatedPlugin& operator=(const IsolatedPlugin&) = delete;

  const bp_plugin_api& api() const { return api_; }
  std::uint32_t abi_version() const { return abi_version_; }  // that was negotiated
  bp_plugin* handle() { return reinterpret_cast<bp_plugin*>(this); }
  static IsolatedPlugin& of(bp_plugin* handle) {
    return *reinterpret_cast<IsolatedPlugin*>(handle);
  }
  const std::string& name() const { return name_; }
  SharedMemory& memory() { return *memory_; }

  // A worker and its number, which says of an object whether that is the one it lives in.
  struct Place {
    std::shared_ptr<WorkerProcess> worker;  // null: there is none, see `why`
    std::uint64_t number = 0;
    bp_error* why = nullptr;  // the caller's
  };
  // The one that there is; of work that begins anew another is started in place of one that ended.
  Place place(bool begins_anew);

  struct Question {
    WorkerEntry entry;
    std::span<const std::uint32_t> node_ids = {};  // what it is about, for the error
    const bp_cancel* cancel = nullptr;
    std::uint64_t may_take_ns = 0;  // asked to wait so long
    bool gives_back = false;        // an entry that cannot fail: nobody to tell of an interrupt
  };
  // Sends and waits. What the worker answers comes after its spans; an error is the plugin's, or
  // says how the worker ended.
  bp_error* ask(const Place& place, const Question& question, const WireWriter& request,
                std::string& answer);
  // Of an object that lives in worker `number`.
  bp_error* ask(std::uint64_t number, const Question& question, const WireWriter& request,
                std::string& answer);
  // Of an entry that cannot fail: of a worker that is gone there is nothing to give back.
  void tell(std::uint64_t number, WorkerEntry entry, const WireWriter& request);
  void finish();

  // As it was, where no worker can be asked any more: its devices are lost then, not gone.
  std::uint32_t device_count();

  // What device `index` says of itself, kept for good. `as_said` is what the plugin said,
  // `as_shown` what the host sees: memory that the host does not share with it.
  struct Description {
    std::unique_ptr<WireInfo> as_said, as_shown;
  };
  bp_error* describe(std::uint32_t index, const bp_device_info*& out_shown);
  // Whether host memory is what the device works in: its buffers are shared memory then.
  bool shares_memory(std::uint32_t index);
  // As the plugin knows it, of what the host hands back.
  void put_info_of(WireWriter& out, const bp_device_info* info);

 private:
  IsolatedPlugin(std::string name, std::string path, std::string sha256)
      : name_(std::move(name)), path_(std::move(path)), sha256_(std::move(sha256)) {}
  Result<std::shared_ptr<WorkerProcess>> start_worker();
  Status read_hello(WireReader& in);
  // Of an entry that answers no error: to the log. Takes over the error.
  void log_failure(WorkerEntry entry, bp_error* error) const;
  bp_error* lost(WorkerProcess& worker, const Question& question, bp_code code);

  const std::string name_, path_, sha256_;
  const pid_t process_ = process_id();
  bp_plugin_api api_{};
  std::uint32_t abi_version_ = 0;
  std::unique_ptr<SharedMemory> memory_;
  std::mutex mutex_;  // guards what follows; not held while the worker is asked
  std::condition_variable started_;
  bool is_starting_ = false, is_finished_ = false;
  std::shared_ptr<WorkerProcess> worker_;
  std::uint64_t number_ = 0;
  std::string how_it_ended_;
  std::uint32_t device_count_ = 0;  // when it was last asked
  std::map<std::uint32_t, Description> descriptions_;
};

// The table that forwards; entries that `present` says the plugin lacks (a bit per WorkerEntry) are
// NULL.
bp_plugin_api forwarding_table(std::uint32_t version, std::uint64_t flags, std::uint64_t present);

}  // namespace backplane::runtime
