// ProgramExecutable: an executable made of one kernel per node (or per group of nodes), for devices
// whose memory their own code addresses through pointers. It resolves sizes, turns views into
// pointer arithmetic, plans the workspace by lifetimes, and keeps one Instance per set of sizes.
//
//   plugin: groups nodes into Steps, gives a KernelFactory    (compile time)
//   SDK:    per sizes: specs, storage, workspace, kernels      (first call at these sizes)
//   call:   a table of pointers, then step after step; no allocation, no lock held over a kernel
#pragma once

#include <backplane/sdk/instance.hpp>

#include <array>
#include <cstdlib>
#include <list>
#include <mutex>

namespace backplane::sdk {

// How what lies with the host gets to the device, where kernels cannot read the host's memory.
struct DeviceMemory {
  // A copy on the device, for as long as the answer lives.
  std::function<Result<std::shared_ptr<std::byte>>(const void* data, std::size_t bytes)> keep;
  // Done on return; called where kernels run, between them.
  std::function<Status(std::byte* to, const void* from, std::size_t bytes)> write;
};

class ProgramExecutable : public Executable {
 public:
  static constexpr std::size_t kInstanceLimit = 256;  // sets of sizes kept, least recently used out

  // `input_layouts` may be empty: all strided.
  ProgramExecutable(const Subgraph& graph, std::vector<Step> steps, KernelFactory factory,
                    std::vector<bp_layout> input_layouts = {}, Relayout relayout = {})
      : graph_(graph.raw()),
        view_(graph_.view()),
        steps_(std::move(steps)),
        factory_(std::move(factory)),
        layouts_(std::move(input_layouts)),
        relayout_(std::move(relayout)) {
    const bp_io_contract plain{{BP_LAYOUT_STRIDED, 0, 0}};
    dim_class_count = view_.dim_class_count();
    inputs.resize(view_.inputs().size(), plain);
    outputs.resize(view_.outputs().size(), plain);
    for (std::size_t i = 0; i < layouts_.size(); ++i) inputs[i].layout = layouts_[i];
  }

  // Intermediates come from bp_lending one by one instead of one workspace for the whole call.
  // Costs two calls of the host for each; worth it where much else is alive meanwhile.
  void lend_intermediates() { lends_intermediates_ = true; }

  // Kernels work in the host's memory: a call whose workspace is too small, since the host asked
  // for the size at another variant or lends nothing, takes memory of the host's. Else that is an
  // error.
  void bring_workspace() { brings_workspace_ = true; }

  // Constants and numbers that are bound by value are brought to the device, the former now and the
  // latter in each call. Before the first call.
  Status use_device_memory(DeviceMemory memory) {
    constants_.resize(view_.value_count());
    for (std::uint32_t i = 0; i < constants_.size(); ++i) {
      const bp_value& v = view_.value(i).raw();
      if ((v.flags & BP_VALUE_CONSTANT) == 0 || v.producer != BP_NONE || v.data_bytes == 0)
        continue;
      auto kept = memory.keep(v.data, static_cast<std::size_t>(v.data_bytes));
      if (!kept.ok()) return kept.status();
      constants_[i] = std::move(*kept);
    }
    for (std::size_t i = 0; i < view_.inputs().size(); ++i)
      if (view_.value(view_.inputs()[i]).has(BP_VALUE_HOST_SCALAR)) numbers_.push_back(i);
    write_ = std::move(memory.write);
    return {};
  }

  // As above, with constants in memory that `device` allocates.
  Status use_device_memory(
      Device& device,
      const std::function<Status(std::byte* to, const void* from, std::size_t bytes)>& write) {
    return use_device_memory(
        {[&](const void* data, std::size_t bytes) -> Result<std::shared_ptr<std::byte>> {
           auto made = device.allocate(bytes);
           if (!made.ok()) return made.status();
           auto memory = std::make_shared<Buffer>(std::move(*made));
           BP_SDK_RETURN_IF_ERROR(write(memory->data(), data, bytes));
           return std::shared_ptr<std::byte>(memory, memory->data());
         },
         write});
  }

  Result<std::uint64_t> workspace_bytes(std::span<const std::int64_t> dims) override {
    if (lends_intermediates_) return std::uint64_t{0};
    auto found = instance(dims);
    if (!found.ok()) return found.status();
    return (*found)->workspace_bytes() + number_bytes();
  }

  Status execute(const Execution& call) override { return run(call, nullptr); }

  // As execute; kernels of the call get `context`.
  Status run(const Execution& call, CallContext* context) {
    auto found = instance({call.dims(), view_.dim_class_count()});
    if (!found.ok()) return found.status();
    std::array<std::byte*, 64> small;
    std::vector<std::byte*> large;
    const std::size_t count = inputs.size() + outputs.size();
    std::byte** at = small.data();
    if (count > small.size()) {
      large.resize(count);
      at = large.data();
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) at[i] = address(call.input(i));
    for (std::size_t i = 0; i < outputs.size(); ++i)
      at[inputs.size() + i] = Range(call.output(i).range).data();
    std::byte* workspace = call.workspace().data();
    const bool lent = lends_each() && call.lending();
    std::unique_ptr<std::byte[]> own;
    const std::uint64_t needed = (*found)->workspace_bytes() + number_bytes();
    if (!lent && needed > call.workspace().bytes()) {
      if (!brings_workspace_)
        return {BP_INVALID_ARGUMENT, "the workspace has " +
                                         std::to_string(call.workspace().bytes()) +
                                         " bytes, needed are " + std::to_string(needed)};
      own.reset(new std::byte[needed + Instance::kAlignment]);
      const auto base = reinterpret_cast<std::uintptr_t>(own.get());
      workspace = own.get() + (Instance::kAlignment - base % Instance::kAlignment);
    }
    std::byte* number = workspace + (*found)->workspace_bytes();
    for (const std::size_t i : numbers_) {
      BP_SDK_RETURN_IF_ERROR(write_(number, call.input(i).scalar, sizeof(bp_binding::scalar)));
      at[i] = std::exchange(number, number + Instance::kAlignment);
    }
    if (lent) workspace = nullptr;  // asked for in case the host lends nothing
    return (*found)->run({at, inputs.size()}, {at + inputs.size(), outputs.size()}, workspace,
                         call.lending(), context);
  }

  const GraphView& graph() const { return view_; }

  // What beside the sizes kernels are prepared for: the number of threads, say.
  virtual std::int64_t variant() const { return 0; }

  // The program at these sizes; made at the first call. Safe from several threads.
  Result<std::shared_ptr<const Instance>> instance(std::span<const std::int64_t> dims) {
    const std::int64_t wanted = variant();
    {
      const std::lock_guard lock(mutex_);
      for (auto it = instances_.begin(); it != instances_.end(); ++it) {
        if (it->variant != wanted ||
            !std::equal(dims.begin(), dims.end(), it->dims.begin(), it->dims.end()))
          continue;
        if (it != instances_.begin()) instances_.splice(instances_.begin(), instances_, it);
        return instances_.front().instance;
      }
    }
    auto made =
        Instance::make(view_, steps_, layouts_, Dims(dims), factory_, relayout_, constants_);
    if (!made.ok()) return made.status();
    const std::lock_guard lock(mutex_);
    instances_.push_front({{dims.begin(), dims.end()}, wanted, *made});
    if (instances_.size() > kInstanceLimit) instances_.pop_back();
    return *made;
  }

 private:
  // Under BACKPLANE_CHECK=memory the host sees each intermediate by itself.
  bool lends_each() const {
    static const bool checked = [] {
      const char* const text = std::getenv("BACKPLANE_CHECK");
      return text != nullptr && std::string_view(text) == "memory";
    }();
    return lends_intermediates_ || (checked && (flags & BP_EXECUTABLE_LENDING) != 0);
  }

  struct Entry {
    std::vector<std::int64_t> dims;
    std::int64_t variant;
    std::shared_ptr<const Instance> instance;
  };
  // A host scalar is bound by value: its address is that of the binding's own bytes.
  static std::byte* address(const bp_binding& binding) {
    if (binding.range.buffer == nullptr && binding.range.host == nullptr)
      return reinterpret_cast<std::byte*>(const_cast<std::uint64_t*>(binding.scalar));
    return Range(binding.range).data();
  }

  OwnedGraph graph_;
  GraphView view_;
  std::vector<Step> steps_;
  KernelFactory factory_;
  std::vector<bp_layout> layouts_;
  Relayout relayout_;
  std::uint64_t number_bytes() const { return numbers_.size() * Instance::kAlignment; }

  Constants constants_;               // on the device, by value
  std::vector<std::size_t> numbers_;  // inputs that are brought there in each call
  std::function<Status(std::byte* to, const void* from, std::size_t bytes)> write_;
  bool lends_intermediates_ = false, brings_workspace_ = false;
  std::mutex mutex_;
  std::list<Entry> instances_;
};

}  // namespace backplane::sdk
