// What stands on the host's side for the objects of an isolated plugin, and how its entries speak
// of them to the worker. A device that works in host memory gets buffers of shared memory, so that
// copies need no worker; others have theirs in the worker, and what is copied passes through shared
// memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime/isolate/isolated_plugin.h"

namespace backplane::runtime::forward {

// Objects of the host's side. The plugin's own are numbers here.
struct ForwardedDevice {
  ForwardedDevice(IsolatedPlugin& of_plugin, std::uint32_t at, bool shares)
      : plugin(of_plugin), index(at), shares_memory(shares) {}
  IsolatedPlugin& plugin;
  const std::uint32_t index;
  const bool shares_memory;
  std::mutex mutex;  // guards what follows; not held while the worker is asked
  std::condition_variable opened;
  bool is_opening = false;
  std::uint64_t number = 0, remote = 0;
};
struct ForwardedBuffer {
  explicit ForwardedBuffer(ForwardedDevice& of_device) : device(of_device) {}
  ForwardedDevice& device;
  SharedBlock block;  // of a device that shares memory
  std::uint64_t number = 0, remote = 0;
};
struct ForwardedStream {
  explicit ForwardedStream(ForwardedDevice& of_device) : device(of_device) {}
  ForwardedDevice& device;
  std::uint64_t number = 0, remote = 0;
};
struct ForwardedEvent {
  explicit ForwardedEvent(ForwardedDevice& of_device) : device(of_device) {}
  ForwardedDevice& device;
  std::uint64_t number = 0, remote = 0;
  std::vector<SharedBlock> staged;  // what its work reads, until it was seen to be complete
};

template <class Forwarded, class Handle>
Forwarded& of(Handle* handle) {
  return *reinterpret_cast<Forwarded*>(handle);
}
inline ForwardedDevice& device_of(bp_device* handle) { return of<ForwardedDevice>(handle); }
template <class Handle, class Forwarded>
Handle* handle_of(Forwarded* object) {
  return reinterpret_cast<Handle*>(object);
}

bp_error* unparsed();

// The device in the worker that there is. Of work that begins anew it is opened again in a new one,
// by one thread: others wait, since a plugin opens a device once.
bp_error* locate(ForwardedDevice& device, bool begins_anew, IsolatedPlugin::Place& out_place,
                 std::uint64_t& out_remote);

// Of a device as it is: no other worker is started for the question, which begins with its number.
bp_error* ask_of(ForwardedDevice& device, WorkerEntry entry, std::string& answer);

// A question about a device whose answer is a new object of it.
bp_error* ask_object(ForwardedDevice& device, WorkerEntry entry, const WireWriter& rest,
                     std::uint64_t& out_number, std::uint64_t& out_remote);

// A range as the worker of that number takes it: of a buffer of its own, or of shared memory.
bp_error* put_range(WireWriter& out, std::uint64_t number, const bp_range& range);
bp_error* put_order(WireWriter& out, std::uint64_t number, const bp_order& order);

// Entries of bp_plugin_api that are about graphs and executables.
bp_error* claims(bp_plugin* plugin, const bp_device_info* info, const bp_graph* graph,
                 bp_claim_sink* sink);
bp_error* compile(bp_plugin* plugin, const bp_compile_args* args, bp_executable** out_executable);
bp_error* executable_describe(bp_executable* handle, bp_executable_info* out_info);
void executable_release(bp_executable* handle);
bp_error* execute(bp_executable* handle, const bp_execute_args* args);
bp_error* executable_workspace(bp_executable* handle, const std::int64_t* dims,
                               std::uint64_t* out_bytes);
bp_error* executable_save(bp_executable* handle, bp_byte_sink* sink);
bp_error* blob_check(bp_plugin* plugin, const bp_device_info* info, bp_string requirement,
                     std::uint32_t* out_answer);
bp_error* executable_load(bp_device* handle, const void* data, std::size_t size,
                          bp_executable** out_executable);

}  // namespace backplane::runtime::forward
