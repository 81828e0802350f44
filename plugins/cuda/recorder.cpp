#include "recorder.h"

#include <array>

namespace backplane::cuda {

using kernels::Bound;
using kernels::Extent;

Status Recorder::wait_for(const sdk::Order& order) {
  for (std::size_t i = 0; i < order.wait_count(); ++i) {
    const auto* event = static_cast<const CudaEvent*>(order.wait(i));
    if (const Code code = driver().cuStreamWaitEvent(stream_, event->get(), 0); code != kSuccess)
      return context_.failure("cuStreamWaitEvent", code);
  }
  return {};
}

template <class Command>
Status Recorder::enqueue(const char* call, const std::shared_ptr<const Work>& work,
                         Command&& command) {
  Profile& profile = context_.profile();
  Profile::Span span;
  if (profile.is_active()) span = profile.begin_span(stream_);
  const Code code = context_.retried(command);
  if (code != kSuccess) {
    const Status status = context_.failure(call, code);
    return {status.code(), work->name + ": " + std::string(status.message())};
  }
  if (span) profile.end_span(span, stream_, work, call_id_);
  return {};
}

Status Recorder::launch(const kernels::Program& program, std::span<const Bound> arguments,
                        const Extent& items, const Extent& group,
                        const std::shared_ptr<const Work>& work) {
  auto function = static_cast<const CudaProgram&>(program).function();
  if (!function.ok()) return function.status();
  // Each bound argument is one parameter of 64 bits, or two: a base and an offset.
  static std::uint64_t no_offset = 0;
  constexpr std::size_t kUsual = 64;
  std::array<void*, kUsual> few;
  std::vector<void*> many;
  void** parameters = few.data();
  if (arguments.size() * 2 > kUsual) {
    many.resize(arguments.size() * 2);
    parameters = many.data();
  }
  std::size_t count = 0;
  for (const Bound& a : arguments) {
    if (a.is_memory) {
      parameters[count++] = const_cast<std::byte**>(&a.address);
      parameters[count++] = &no_offset;
    } else {
      parameters[count++] = const_cast<std::uint64_t*>(&a.bits);
    }
  }
  const auto blocks = [&](std::size_t dim) {
    return static_cast<unsigned>(items[dim] / group[dim]);
  };
  const auto threads = [&](std::size_t dim) { return static_cast<unsigned>(group[dim]); };
  Status status = enqueue("cuLaunchKernel", work, [&] {
    return driver().cuLaunchKernel(*function, blocks(0), blocks(1), blocks(2), threads(0),
                                   threads(1), threads(2), 0, stream_, parameters, nullptr);
  });
  const bool is_marked = std::exchange(may_fault_, false) && is_pytorchs();
  return status.ok() && is_marked ? given_->mark_fault() : status;
}

Status Recorder::fill_zero(std::byte* address, std::uint64_t bytes,
                           const std::shared_ptr<const Work>& work) {
  return enqueue("cuMemsetD8Async", work,
                 [&] { return driver().cuMemsetD8Async(address_of(address), 0, bytes, stream_); });
}

Status Recorder::product(const kernels::LibraryProduct& product, const std::byte* left,
                         const std::byte* right, const std::byte* bias, std::byte* result,
                         std::byte* workspace, const std::shared_ptr<const Work>& work) {
  constexpr Code kAllocationFailed = 3;  // cublasStatus_t
  Code said = kSuccess;
  Status status = enqueue("cublasLtMatmul", work, [&] {
    said =
        static_cast<const BlasProduct&>(product).run(left, right, bias, result, workspace, stream_);
    return said == kSuccess ? kSuccess : said == kAllocationFailed ? kOutOfMemory : kInvalidValue;
  });
  if (said == kSuccess || said == kAllocationFailed) return status;
  return {BP_INTERNAL,
          work->name + ": cublasLtMatmul failed with cuBLAS status " + std::to_string(said)};
}

Result<std::byte*> Recorder::fault_word(const std::shared_ptr<const Work>&) {
  if (fault_ == nullptr) {
    auto made = context_.faults().take();
    if (!made.ok()) return made.status();
    fault_ = std::move(*made);
  }
  may_fault_ = true;
  return reinterpret_cast<std::byte*>(fault_.get());
}

Status Recorder::copy(const sdk::Copy& copy, const std::shared_ptr<const Work>& work) {
  const std::size_t bytes = copy.bytes();
  if (bytes == 0) return {};
  const bool from_device = copy.source.buffer() != nullptr,
             to_device = copy.target.buffer() != nullptr;
  return enqueue(work->name.c_str(), work, [&]() -> Code {
    if (from_device && to_device)
      return driver().cuMemcpyDtoDAsync_v2(address_of(copy.target.data()),
                                           address_of(copy.source.data()), bytes, stream_);
    if (to_device)
      return driver().cuMemcpyHtoDAsync_v2(address_of(copy.target.data()), copy.source.data(),
                                           bytes, stream_);
    if (from_device)
      return driver().cuMemcpyDtoHAsync_v2(copy.target.data(), address_of(copy.source.data()),
                                           bytes, stream_);
    return kInvalidValue;
  });
}

Status Recorder::finish(const sdk::Order& order, Status status, bool lent) {
  CudaStream* const stream = given_;
  if (status.ok() && is_pytorchs() && fault_ != nullptr) {
    BP_SDK_RETURN_IF_ERROR(stream->wait_for_faults());
    status = context_.faults().outcome(*std::exchange(fault_, nullptr));
  }
  if (status.ok() && stream != nullptr && fault_ != nullptr)
    stream->add_fault(std::exchange(fault_, nullptr));
  if (status.ok() && order.signal() != nullptr) {
    auto faults = stream != nullptr ? stream->take_faults() : std::vector<Fault>();
    if (fault_ != nullptr) faults.push_back(std::move(fault_));
    status = static_cast<CudaEvent*>(order.signal())->record(stream_, std::move(faults));
    if (status.ok()) return status;
  }
  if (status.ok() && stream != nullptr && !lent) return status;
  const Code code = driver().cuStreamSynchronize(stream_);
  if (!status.ok()) return status;
  if (code != kSuccess) return context_.failure("the device's work", code);
  return fault_ != nullptr ? context_.faults().outcome(*fault_) : Status();
}

}  // namespace backplane::cuda
