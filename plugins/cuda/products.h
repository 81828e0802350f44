// Products of matrices by cuBLASLt.
#pragma once

#include <backplane/kernels/target.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "memory.h"

namespace backplane::cuda {

// The library's state for one device. Calls come from any thread.
class BlasLibrary {
 public:
  // Null where there is no library, or it does not start on the device. The context is the thread's
  // here and in all that follows.
  static std::shared_ptr<const BlasLibrary> find();
  BlasLibrary(const Blas& calls, BlasHandle handle) : calls_(calls), handle_(handle) {}
  ~BlasLibrary() { calls_.cublasLtDestroy(handle_); }
  BlasLibrary(const BlasLibrary&) = delete;
  BlasLibrary& operator=(const BlasLibrary&) = delete;
  const Blas& calls() const { return calls_; }
  BlasHandle handle() const { return handle_; }

 private:
  const Blas& calls_;
  BlasHandle handle_;
};

class BlasProduct final : public kernels::LibraryProduct {
 public:
  // Null where the library does not compute it.
  static std::shared_ptr<const BlasProduct> make(std::shared_ptr<const BlasLibrary> library,
                                                 const kernels::ProductShape& shape);
  ~BlasProduct() override;
  BlasProduct(const BlasProduct&) = delete;
  BlasProduct& operator=(const BlasProduct&) = delete;
  std::uint64_t workspace_bytes() const override;
  Code run(const std::byte* left, const std::byte* right, const std::byte* bias, std::byte* result,
           std::byte* workspace, StreamHandle stream) const;

 private:
  explicit BlasProduct(std::shared_ptr<const BlasLibrary> library) : library_(std::move(library)) {}
  bool describe(const kernels::ProductShape& shape);
  std::optional<BlasChoice> choose(std::uint32_t alignment) const;

  std::shared_ptr<const BlasLibrary> library_;
  BlasDescription description_ = nullptr;
  bool has_bias_ = false;
  mutable std::mutex bias_mutex_;  // the description has its address while a call is made
  // The library has columns where we have rows: its first factor is our right one.
  BlasLayout first_ = nullptr, second_ = nullptr, result_ = nullptr;
  // Where all addresses are multiples of 16 bytes, and where they are of an element.
  std::optional<BlasChoice> aligned_, unaligned_;
};

}  // namespace backplane::cuda
