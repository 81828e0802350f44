// Kernels that follow addresses of the host's, on a device whose addresses are others and whose
// memory the host can reach nevertheless: a simulator, or memory behind a window.
#pragma once

#include <backplane/sdk/kernel_table.hpp>

#include <functional>
#include <utility>
#include <vector>

namespace backplane::sdk {

// Where the host has an address of the device's, which is not null.
using HostAddress = std::function<std::byte*(std::byte* address)>;

// Runs a kernel with the host's addresses of operands, results and scratch memory.
class MappedKernel final : public Kernel {
 public:
  MappedKernel(std::unique_ptr<Kernel> inner, HostAddress map, const Step& step)
      : inner_(std::move(inner)),
        map_(std::move(map)),
        operand_count_(step.operands.size()),
        result_count_(step.results.size()) {}
  std::uint64_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  Status run(const KernelCall& call) const override {
    const auto operands = mapped(call.operands, operand_count_);
    const auto results = mapped(call.results, result_count_);
    return inner_->run({operands.data(), results.data(), mapped(call.scratch), call.context});
  }

 private:
  std::byte* mapped(std::byte* address) const { return address ? map_(address) : nullptr; }
  std::vector<std::byte*> mapped(std::byte* const* addresses, std::size_t count) const {
    std::vector<std::byte*> out(addresses, addresses + count);
    for (std::byte*& address : out) address = mapped(address);
    return out;
  }

  std::unique_ptr<Kernel> inner_;
  HostAddress map_;
  std::size_t operand_count_, result_count_;
};

// What makes a kernel: of a row, or of copies.
inline KernelFactory mapped(KernelFactory make, HostAddress map) {
  return [make = std::move(make),
          map = std::move(map)](const StepContext& step) -> Result<std::unique_ptr<Kernel>> {
    auto inner = make(step);
    if (!inner.ok()) return inner.status();
    return std::make_unique<MappedKernel>(std::move(*inner), map, step.step());
  };
}
inline std::vector<KernelRow> mapped(std::vector<KernelRow> rows, const HostAddress& map) {
  for (KernelRow& row : rows) {
    row.make = mapped(std::move(row.make), map);
    if (row.make_packed) row.make_packed = mapped(std::move(row.make_packed), map);
  }
  return rows;
}

}  // namespace backplane::sdk
