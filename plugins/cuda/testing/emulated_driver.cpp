// A CUDA driver for machines without a GPU, for tests: exports what api.h lists of it, and runs
// kernels in threads of the process; emulated_nvrtc.cpp and emulated_blas.cpp add the other two
// libraries. What a real device forgives is not forgiven here:
//   - device memory lies where the host cannot read or write it, and kernels fault beyond its ends
//     and after its release;
//   - copies from the host read it as late as the order allows;
//   - the threads of a block run in another order after each barrier;
//   - calls without a current context fail.
// BACKPLANE_FAULTY_CUDA="cuMemAlloc_v2:2:3:1", read at each call: after three calls of that entry
// one answers code 2 (-1: all do). A code after which a real context is lost loses it here too.
// BACKPLANE_EMULATED_CUDA_DEVICES: how many there are. BACKPLANE_EMULATED_CUDA_VERSION: 13000.
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/cuda/testing/emulated_device.h"

namespace backplane::cuda {

// ---- Failures --------------------------------------------------------------------------------

int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == 0 ? otherwise : std::atoi(text);
}

Code planned_failure(std::string_view entry) {
  static std::mutex mutex;
  static std::string text;
  static long seen = 0;
  const char* now = std::getenv("BACKPLANE_FAULTY_CUDA");
  if (now == nullptr || *now == 0) return kSuccess;
  const std::lock_guard lock(mutex);
  if (text != now) {
    text = now;
    seen = 0;
  }
  std::istringstream in(text);
  std::string wanted;
  Code code = kSuccess;
  long skip = 0, count = -1;
  char colon = 0;
  std::getline(in, wanted, ':');
  in >> code >> colon >> skip >> colon >> count;
  if (entry != wanted) return kSuccess;
  const long call = seen++;
  return call >= skip && (count < 0 || call < skip + count) ? code : kSuccess;
}

namespace {

// ---- Memory ----------------------------------------------------------------------------------

// Device addresses are reserved and never mapped; what lies there is `kApart` further on. No
// address is given twice.
class DeviceMemory {
 public:
  Code allocate(std::size_t bytes, Address& out) {
    if (bytes == 0) return kInvalidValue;
    const std::size_t page = 4096, whole = (bytes + page - 1) / page * page;
    const std::lock_guard lock(mutex_);
    if (base_ == nullptr) {
      void* reserved = ::mmap(nullptr, 2 * kApart, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (reserved == MAP_FAILED) return kOutOfMemory;
      base_ = static_cast<std::byte*>(reserved);
    }
    if (used_ + whole + 2 * page > kApart) return kOutOfMemory;
    std::byte* const begin = base_ + used_ + page;
    used_ += whole + page;
    if (::mprotect(begin + kApart, whole, PROT_READ | PROT_WRITE) != 0) return kOutOfMemory;
    std::memset(begin + kApart, 0xcd, whole);
    // The end of the buffer is the end of the page, as far as alignment allows.
    constexpr std::size_t kAlignment = 256;
    std::byte* const at = begin + (whole - (bytes + kAlignment - 1) / kAlignment * kAlignment);
    live_[at] = {begin, whole};
    out = reinterpret_cast<Address>(at);
    return kSuccess;
  }
  Code release(Address address) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(reinterpret_cast<std::byte*>(address));
    if (found == live_.end()) return address == 0 ? kSuccess : kInvalidValue;
    ::madvise(found->second.begin + kApart, found->second.bytes, MADV_DONTNEED);
    ::mprotect(found->second.begin + kApart, found->second.bytes, PROT_NONE);
    live_.erase(found);
    return kSuccess;
  }
  // Where the bytes of a device address are; other addresses are the host's.
  template <class T>
  T* real(T* address) const {
    auto* at = reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(address));
    return base_ != nullptr && at >= base_ && at < base_ + kApart
               ? reinterpret_cast<T*>(at + kApart)
               : address;
  }
  std::uint64_t real_bits(std::uint64_t bits) const {
    return reinterpret_cast<std::uint64_t>(real(reinterpret_cast<std::byte*>(bits)));
  }

 private:
  static constexpr std::size_t kApart = std::size_t{1} << 42;
  struct Mapping {
    std::byte* begin;
    std::size_t bytes;
  };
  std::mutex mutex_;
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
  std::map<std::byte*, Mapping> live_;
};
DeviceMemory& memory() {
  static auto* all = new DeviceMemory;  // the process may end while threads run
  return *all;
}

// ---- Blocks of threads ------------------------------------------------------------------------

struct Fibres {
  void (*run)(unsigned count, void (*body)(void*, unsigned), void* data);
  void (*meet)();
  void (*meet_warp)();
};

// The fibres of one block, all in the thread that runs it.
class Block {
 public:
  static void run(unsigned count, void (*body)(void*, unsigned), void* data) {
    thread_local Block block;
    block.run_all(count, body, data);
  }
  static void meet() { wait(Waits::kBlock); }
  static void meet_warp() { wait(Waits::kWarp); }

 private:
  static constexpr std::size_t kStack = 256 << 10;
  static constexpr unsigned kWarp = 32;
  enum class Waits : std::uint8_t { kNothing, kWarp, kBlock, kEnded };
  struct Fibre {
    std::jmp_buf place;
    bool has_begun = false;
    std::unique_ptr<std::byte[]> stack{new std::byte[kStack]};
    Waits waits = Waits::kEnded;
  };
  // By jumps, as changes of contexts ask the system for its mask of signals each time.
  static void wait(Waits what) {
    Block& self = *current_;
    Fibre& fibre = *self.fibres_[self.index_];
    fibre.waits = what;
    if (::_setjmp(fibre.place) == 0) ::_longjmp(self.home_, 1);
  }
  // A fibre that has ended begins with the next block.
  [[noreturn]] static void begin() {
    for (;;) {
      current_->body_(current_->data_, current_->index_);
      wait(Waits::kEnded);
    }
  }
  // Until it waits.
  [[gnu::noinline]] void go_on(Fibre& fibre) {
    if (::_setjmp(home_) != 0) return;
    if (fibre.has_begun) ::_longjmp(fibre.place, 1);
    fibre.has_begun = true;
    ucontext_t context;
    ::getcontext(&context);
    context.uc_stack.ss_sp = fibre.stack.get();
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;
    ::makecontext(&context, &Block::begin, 0);
    ::setcontext(&context);
  }
  // Fibres [first, end) go on where all that have not ended wait for `what`.
  bool release(unsigned first, unsigned end, Waits what) {
    bool any = false;
    for (unsigned i = first; i < end; ++i) {
      if (fibres_[i]->waits == Waits::kEnded) continue;
      if (fibres_[i]->waits != what) return false;
      any = true;
    }
    for (unsigned i = first; i < end && any; ++i)
      if (fibres_[i]->waits == what) fibres_[i]->waits = Waits::kNothing;
    return any;
  }
  void run_all(unsigned count, void (*body)(void*, unsigned), void* data) {
    current_ = this;
    body_ = body;
    data_ = data;
    while (fibres_.size() < count) fibres_.push_back(std::make_unique<Fibre>());
    for (unsigned i = 0; i < count; ++i) fibres_[i]->waits = Waits::kNothing;
    bool backwards = false;
    for (bool goes_on = true; goes_on; backwards = !backwards) {
      for (unsigned i = 0; i < count; ++i) {
        index_ = backwards ? count - 1 - i : i;
        if (fibres_[index_]->waits == Waits::kNothing) go_on(*fibres_[index_]);
      }
      goes_on = release(0, count, Waits::kBlock);
      for (unsigned first = 0; first < count; first += kWarp)
        goes_on = release(first, std::min(first + kWarp, count), Waits::kWarp) || goes_on;
    }
    for (unsigned i = 0; i < count; ++i)
      if (fibres_[i]->waits != Waits::kEnded) {
        std::fputs("emulated CUDA: threads of a block wait for others that do not come\n", stderr);
        std::abort();
      }
  }

  static thread_local Block* current_;
  std::jmp_buf home_{};
  std::vector<std::unique_ptr<Fibre>> fibres_;
  unsigned index_ = 0;
  void (*body_)(void*, unsigned) = nullptr;
  void* data_ = nullptr;
};
thread_local Block* Block::current_ = nullptr;

constexpr Fibres kFibres = {Block::run, Block::meet, Block::meet_warp};
using Run = void (*)(void** parameters, const unsigned* grid, const unsigned* block,
                     const Fibres* fibres);

// ---- Contexts --------------------------------------------------------------------------------

constexpr int kMajor = 9, kMinor = 0;  // compute capability
constexpr unsigned kMostThreads = 1024;

int device_count() { return number_of("BACKPLANE_EMULATED_CUDA_DEVICES", 1); }
int version() { return number_of("BACKPLANE_EMULATED_CUDA_VERSION", 13000); }

// Of a thread, the current one last. Has no destructor: profiles are read while the process ends,
// when those of the thread's variables have run.
class ContextStack {
 public:
  bool empty() const { return count_ == 0; }
  void push_back(ContextHandle context) {
    if (count_ == handles_.size()) std::abort();
    handles_[count_++] = context;
  }
  ContextHandle pop_back() { return handles_[--count_]; }

 private:
  std::array<ContextHandle, 64> handles_{};
  std::size_t count_ = 0;
};
thread_local ContextStack contexts;

// The error that a context ended with; every later call answers it.
std::atomic<Code> ended_with{kSuccess};

}  // namespace

struct ContextObject {};

struct EventObject {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, done = 0;
  std::chrono::steady_clock::time_point at{};

  void complete(std::uint64_t number) {
    {
      const std::lock_guard lock(mutex);
      done = std::max(done, number);
      at = std::chrono::steady_clock::now();
    }
    changed.notify_all();
  }
  void wait(std::uint64_t number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= number; });
  }
};

// A thread that does its work in order.
struct StreamObject {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false, ending = false;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return !work.empty() || ending; });
      if (work.empty()) return;
      auto next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      next();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  void add(std::function<void()> next) {
    {
      const std::lock_guard lock(mutex);
      work.push_back(std::move(next));
    }
    changed.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return work.empty() && !busy; });
  }
};

struct ModuleObject {
  void* library = nullptr;
};
struct FunctionObject {
  Run run = nullptr;
  int parameters = 0;  // of 64 bits each
};

namespace {

// Handles outlive what is given back: the driver's do for work in flight.
std::shared_ptr<EventObject> event_of(EventHandle handle) {
  return *reinterpret_cast<std::shared_ptr<EventObject>*>(handle);
}
std::shared_ptr<StreamObject> start_stream() {
  auto made = std::make_shared<StreamObject>();
  std::thread([made] { made->run(); }).detach();
  return made;
}
std::shared_ptr<StreamObject> stream_of(StreamHandle handle) {
  static const auto& of_null = *new std::shared_ptr<StreamObject>(start_stream());
  if (handle == nullptr) return of_null;
  return *reinterpret_cast<std::shared_ptr<StreamObject>*>(handle);
}

constexpr Code kNotInitialized = 3, kInvalidContext = 201, kInvalidImage = 200, kNotFound = 500;

std::atomic<bool> initialized{false};

// What every call answers first: a planned failure, or that of the context.
Code refuse(const char* entry, bool needs_context) {
  if (const Code code = planned_failure(entry); code != kSuccess) {
    if (code == kIllegalAddress || code == kLaunchFailed) ended_with = code;
    return code;
  }
  if (!initialized) return kNotInitialized;
  if (needs_context && contexts.empty()) return kInvalidContext;
  return needs_context ? ended_with.load() : kSuccess;
}
#define BP_EMULATED(needs_context) \
  if (const Code refused = refuse(__func__, needs_context); refused != kSuccess) return refused

}  // namespace

namespace {

// Gone when the process ends.
struct ScratchFolder {
  std::filesystem::path path;
  ScratchFolder() {
    std::string name = std::filesystem::temp_directory_path() / "emulated-cuda-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~ScratchFolder() {
    std::error_code none;
    std::filesystem::remove_all(path, none);
  }
};

}  // namespace

const std::filesystem::path& scratch_folder() {
  static const ScratchFolder folder;
  return folder.path;
}

void enqueue(StreamHandle stream, std::function<void()> work) {
  stream_of(stream)->add(std::move(work));
}
std::byte* real_address(const void* address) {
  return memory().real(static_cast<std::byte*>(const_cast<void*>(address)));
}

extern "C" {

#pragma GCC visibility push(default)

Code cuInit(unsigned) {
  if (const Code code = planned_failure(__func__); code != kSuccess) return code;
  initialized = true;
  return device_count() == 0 ? kNoDevice : kSuccess;
}
Code cuDriverGetVersion(int* out) {
  *out = version();
  return planned_failure(__func__);
}
Code cuGetErrorString(Code code, const char** out) {
  *out = code == kOutOfMemory      ? "out of memory"
         : code == kIllegalAddress ? "an illegal memory access was encountered"
         : code == kNoDevice       ? "no CUDA-capable device is detected"
                                   : "an error of the emulated driver";
  return kSuccess;
}
Code cuDeviceGetCount(int* out) {
  BP_EMULATED(false);
  *out = device_count();
  return kSuccess;
}
Code cuDeviceGet(DeviceId* out, int index) {
  BP_EMULATED(false);
  *out = index;
  return index < device_count() ? kSuccess : kInvalidValue;
}
Code cuDeviceGetName(char* out, int size, DeviceId device) {
  BP_EMULATED(false);
  std::snprintf(out, static_cast<std::size_t>(size), "Emulated GPU %d", device);
  return kSuccess;
}
Code cuDeviceGetUuid_v2(unsigned char* out, DeviceId device) {
  BP_EMULATED(false);
  std::memset(out, device, 16);
  return kSuccess;
}
Code cuDeviceGetAttribute(int* out, int which, DeviceId) {
  BP_EMULATED(false);
  *out = which == kMaxThreadsPerBlock       ? static_cast<int>(kMostThreads)
         : which == kClockRate              ? 1'000'000
         : which == kMultiprocessorCount    ? 2
         : which == kMemoryClockRate        ? 1'000'000
         : which == kMemoryBusWidth         ? 128
         : which == kComputeCapabilityMajor ? kMajor
         : which == kComputeCapabilityMinor ? kMinor
                                            : 0;
  return kSuccess;
}
Code cuDeviceTotalMem_v2(std::size_t* out, DeviceId) {
  BP_EMULATED(false);
  *out = std::size_t{4} << 30;
  return kSuccess;
}
Code cuDevicePrimaryCtxRetain(ContextHandle* out, DeviceId) {
  BP_EMULATED(false);
  static ContextObject only;
  *out = &only;
  return kSuccess;
}
Code cuDevicePrimaryCtxRelease_v2(DeviceId) {
  BP_EMULATED(false);
  return kSuccess;
}
Code cuCtxPushCurrent_v2(ContextHandle context) {
  contexts.push_back(context);
  return kSuccess;
}
Code cuCtxPopCurrent_v2(ContextHandle* out) {
  if (contexts.empty()) return kInvalidContext;
  *out = contexts.pop_back();
  return kSuccess;
}

Code cuMemAlloc_v2(Address* out, std::size_t bytes) {
  BP_EMULATED(true);
  return memory().allocate(bytes, *out);
}
Code cuMemFree_v2(Address address) {
  BP_EMULATED(true);
  return memory().release(address);
}
Code cuMemHostAlloc(void** out, std::size_t bytes, unsigned) {
  BP_EMULATED(true);
  *out = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *out == nullptr ? kOutOfMemory : kSuccess;
}
Code cuMemFreeHost(void* address) {
  BP_EMULATED(true);
  std::free(address);
  return kSuccess;
}
Code cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, StreamHandle stream) {
  BP_EMULATED(true);
  stream_of(stream)->add(
      [=] { std::memcpy(memory().real(reinterpret_cast<std::byte*>(to)), from, bytes); });
  return kSuccess;
}
Code cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, StreamHandle stream) {
  BP_EMULATED(true);
  stream_of(stream)->add(
      [=] { std::memcpy(to, memory().real(reinterpret_cast<const std::byte*>(from)), bytes); });
  return kSuccess;
}
Code cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, StreamHandle stream) {
  BP_EMULATED(true);
  stream_of(stream)->add([=] {
    std::memmove(memory().real(reinterpret_cast<std::byte*>(to)),
                 memory().real(reinterpret_cast<const std::byte*>(from)), bytes);
  });
  return kSuccess;
}
Code cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, StreamHandle stream) {
  BP_EMULATED(true);
  stream_of(stream)->add(
      [=] { std::memset(memory().real(reinterpret_cast<std::byte*>(to)), value, bytes); });
  return kSuccess;
}

Code cuStreamCreate(StreamHandle* out, unsigned) {
  BP_EMULATED(true);
  *out = reinterpret_cast<StreamHandle>(new std::shared_ptr<StreamObject>(start_stream()));
  return kSuccess;
}
Code cuStreamDestroy_v2(StreamHandle handle) {
  BP_EMULATED(true);
  auto* owned = reinterpret_cast<std::shared_ptr<StreamObject>*>(handle);
  {
    const std::lock_guard lock((*owned)->mutex);
    (*owned)->ending = true;
  }
  (*owned)->changed.notify_all();
  delete owned;
  return kSuccess;
}
Code cuStreamSynchronize(StreamHandle stream) {
  BP_EMULATED(true);
  stream_of(stream)->synchronize();
  return ended_with;
}
Code cuStreamWaitEvent(StreamHandle stream, EventHandle handle, unsigned) {
  BP_EMULATED(true);
  const auto event = event_of(handle);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    number = event->recorded;
  }
  stream_of(stream)->add([event, number] { event->wait(number); });
  return kSuccess;
}

Code cuEventCreate(EventHandle* out, unsigned) {
  BP_EMULATED(true);
  *out = reinterpret_cast<EventHandle>(
      new std::shared_ptr<EventObject>(std::make_shared<EventObject>()));
  return kSuccess;
}
Code cuEventDestroy_v2(EventHandle handle) {
  BP_EMULATED(true);
  delete reinterpret_cast<std::shared_ptr<EventObject>*>(handle);
  return kSuccess;
}
Code cuEventRecord(EventHandle handle, StreamHandle stream) {
  BP_EMULATED(true);
  const auto event = event_of(handle);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  stream_of(stream)->add([event, number] { event->complete(number); });
  return kSuccess;
}
Code cuEventQuery(EventHandle handle) {
  BP_EMULATED(true);
  const auto event = event_of(handle);
  const std::lock_guard lock(event->mutex);
  return event->done >= event->recorded ? ended_with.load() : kNotReady;
}
Code cuEventSynchronize(EventHandle handle) {
  BP_EMULATED(true);
  const auto event = event_of(handle);
  event->wait(event->recorded);
  return ended_with;
}
Code cuEventElapsedTime(float* out, EventHandle from, EventHandle to) {
  BP_EMULATED(true);
  *out = std::chrono::duration<float, std::milli>(event_of(to)->at - event_of(from)->at).count();
  return kSuccess;
}

// What is loaded is kept: code of kernels may run on in other threads.
Code cuModuleLoadData(ModuleHandle* out, const void* image) {
  BP_EMULATED(true);
  std::uint64_t size = 0;
  const char* at = static_cast<const char*>(image);
  if (std::memcmp(at, kMagic.data(), kMagic.size()) != 0) return kInvalidImage;
  std::memcpy(&size, at + kMagic.size(), sizeof size);
  static std::atomic<int> count{0};
  const auto path = scratch_folder() / ("module-" + std::to_string(count++) + ".so");
  std::ofstream(path, std::ios::binary)
      .write(at + kMagic.size() + sizeof size, static_cast<std::streamsize>(size));
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::remove(path);
  if (library == nullptr) return kInvalidImage;
  *out = new ModuleObject{library};
  return kSuccess;
}
Code cuModuleUnload(ModuleHandle module) {
  BP_EMULATED(true);
  delete module;
  return kSuccess;
}
Code cuModuleGetFunction(FunctionHandle* out, ModuleHandle module, const char* name) {
  BP_EMULATED(true);
  void* run = ::dlsym(module->library, (std::string(name) + "_emulated").c_str());
  const void* count = ::dlsym(module->library, (std::string(name) + "_parameters").c_str());
  if (run == nullptr || count == nullptr) return kNotFound;
  *out = new FunctionObject{reinterpret_cast<Run>(run), *static_cast<const int*>(count)};
  return kSuccess;
}
Code cuLaunchKernel(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                    StreamHandle stream, void** parameters, void**) {
  BP_EMULATED(true);
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_x > 0x7fffffffU || grid_y > 0xffff ||
      grid_z > 0xffff)
    return kInvalidValue;
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (threads == 0 || threads > kMostThreads || block_z > 64) return kInvalidValue;
  auto values = std::make_shared<std::vector<std::uint64_t>>();
  for (int i = 0; i < function->parameters; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, parameters[i], sizeof bits);
    values->push_back(memory().real_bits(bits));
  }
  stream_of(stream)->add([=, run = function->run] {
    std::vector<void*> places;
    for (std::uint64_t& value : *values) places.push_back(&value);
    const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    run(places.data(), grid, block, &kFibres);
  });
  return kSuccess;
}

#pragma GCC visibility pop

}  // extern "C"

}  // namespace backplane::cuda
