// Kernels of a program: lists of launches whose arguments are bound at each call.
#pragma once

#include <backplane/kernels/target.hpp>

namespace backplane::kernels {

// One argument, as it is known before a call.
struct Argument {
  enum Kind : std::uint8_t {
    kOperand,
    kResult,
    kScratch,
    kConstant,
    kFault,
    kOperandValue,
    kBits
  } kind;
  std::size_t index = 0;     // of the step's operand or result
  std::uint64_t offset = 0;  // bytes; the value for kBits
  std::shared_ptr<std::byte> constant{};

  static Argument operand(std::size_t i) { return {kOperand, i}; }
  static Argument result(std::size_t i) { return {kResult, i}; }
  static Argument scratch(std::uint64_t offset) { return {kScratch, 0, offset}; }
  static Argument fault() { return {kFault}; }
  static Argument value(std::size_t i) { return {kOperandValue, i}; }
  static Argument bits(std::uint64_t bits) { return {kBits, 0, bits}; }
};

struct Launch {
  std::shared_ptr<const Program> program;  // null: fills `arguments[0]` with zero bytes
  std::vector<Argument> arguments;
  Extent items{1, 1, 1}, group{1, 1, 1};
  std::uint64_t fill_bytes = 0;
  // Instead of a program: arguments are its factors, its bias or nothing, its result, its
  // workspace.
  std::shared_ptr<const LibraryProduct> product{};
};

class LaunchList final : public sdk::Kernel {
 public:
  explicit LaunchList(std::shared_ptr<const Work> work) : work_(std::move(work)) {}
  // The call's context is its Launcher.
  Status run(const sdk::KernelCall& call) const override;
  std::uint64_t scratch_bytes() const override { return scratch_bytes_; }

  void add(Launch launch) { launches_->push_back(std::move(launch)); }
  // What was added so far and will be; for whom completes launches before the list runs.
  const std::shared_ptr<std::vector<Launch>>& launches() const { return launches_; }
  // Scratch memory for the whole list; returns its offset.
  std::uint64_t reserve(std::uint64_t bytes) {
    const std::uint64_t at = scratch_bytes_;
    scratch_bytes_ += (bytes + 63) / 64 * 64;
    return at;
  }

 private:
  std::shared_ptr<const Work> work_;
  std::shared_ptr<std::vector<Launch>> launches_ = std::make_shared<std::vector<Launch>>();
  std::uint64_t scratch_bytes_ = 0;
};

}  // namespace backplane::kernels
