// The process that a plugin runs in, as its parent has it: started, talked to, ended.
#pragma once

#include <sys/types.h>

#include <csignal>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/isolate/channel.h"
#include "core/runtime/isolate/shared_memory.h"

namespace backplane::runtime {

// What a worker is started with: descriptors that it inherits.
inline constexpr int kWorkerControl = 3, kWorkerMemory = 4;

class WorkerProcess {
 public:
  // The program `backplane-worker` stands beside the library or program that this code is in, or in
  // the folder `bin` there; $BACKPLANE_WORKER names another. It gets SIGINT of no terminal, and
  // ends with this process. (Not by PR_SET_PDEATHSIG, which looks at the thread that started it.)
  static Result<std::shared_ptr<WorkerProcess>> start(const std::string& plugin_path,
                                                      const SharedMapping& memory,
                                                      std::uint32_t thread_count);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // One that no call uses. Empty: the worker has ended.
  Channel take_channel();
  void give_channel(Channel channel);
  bool is_alive() const { return is_alive_.load(std::memory_order_acquire); }
  void kill(std::string why);
  // Of one that was heard to end: "by SIGSEGV", "with exit status 7"; of one that was killed, why.
  std::string how_it_ended();
  // After its last call: it ends by itself, or is ended.
  void finish();

 private:
  WorkerProcess() = default;
  bool reap(int timeout_ms);
  void end_now() const;

  pid_t pid_ = 0;
  // Means this process for good: its number is another's once the program has waited for it.
  Channel pidfd_;  // empty: the system has none
  std::atomic<bool> is_alive_{true};
  Channel control_;
  std::mutex mutex_;  // guards what follows
  std::vector<Channel> idle_;
  bool is_reaped_ = false;
  siginfo_t end_{};  // of nobody: somebody else was told
  std::string why_killed_;
};

}  // namespace backplane::runtime
