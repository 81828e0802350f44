// Where the launches of one call go: a stream.
#pragma once

#include <backplane/kernels/target.hpp>

#include "context.h"
#include "streams.h"

namespace backplane::cuda {

class Recorder final : public kernels::Launcher {
 public:
  // The context is the thread's while this lives.
  Recorder(Context& context, const sdk::Order& order, std::uint64_t call_id = 0)
      : context_(context),
        current_(context.get()),
        given_(static_cast<CudaStream*>(order.stream())),
        stream_(given_ != nullptr ? given_->get() : context.stream()),
        call_id_(call_id) {}

  Status wait_for(const sdk::Order& order);
  Status launch(const kernels::Program& program, std::span<const kernels::Bound> arguments,
                const kernels::Extent& items, const kernels::Extent& group,
                const std::shared_ptr<const Work>& work) override;
  Status fill_zero(std::byte* address, std::uint64_t bytes,
                   const std::shared_ptr<const Work>& work) override;
  Status product(const kernels::LibraryProduct& product, const std::byte* left,
                 const std::byte* right, const std::byte* bias, std::byte* result,
                 std::byte* workspace, const std::shared_ptr<const Work>& work) override;
  Result<std::byte*> fault_word(const std::shared_ptr<const Work>& work) override;
  Status copy(const sdk::Copy& copy, const std::shared_ptr<const Work>& work);

  // Hands what was queued to the order's signal. Without a signal it is waited for where there is
  // no stream, or the host's memory is `lent` to it; on a stream of PyTorch's, the last kernel that
  // may have found something wrong is. After a failure what was queued is waited for first: it must
  // not outlive the call's buffers.
  Status finish(const sdk::Order& order, Status status, bool lent = false);

 private:
  bool is_pytorchs() const { return given_ != nullptr && !given_->is_owned(); }
  template <class Command>
  Status enqueue(const char* call, const std::shared_ptr<const Work>& work, Command&& command);

  Context& context_;
  Current current_;
  CudaStream* given_;  // null: the context's own
  StreamHandle stream_;
  std::uint64_t call_id_;
  Fault fault_;
  bool may_fault_ = false;  // the next launch
};

}  // namespace backplane::cuda
