#include "launch.hpp"

#include <cstring>

namespace backplane::kernels {
namespace {

// Of all kinds but kFault, which may fail.
Bound bind(const Argument& a, const sdk::KernelCall& call) {
  std::byte* address = nullptr;
  switch (a.kind) {
    case Argument::kOperandValue: {
      std::uint64_t bits = 0;
      std::memcpy(&bits, call.operands[a.index], sizeof bits);
      return {nullptr, bits, false};
    }
    case Argument::kOperand:
      address = call.operands[a.index];
      break;
    case Argument::kResult:
      address = call.results[a.index];
      break;
    case Argument::kScratch:
      address = call.scratch;
      break;
    case Argument::kConstant:
      address = a.constant.get();
      break;
    default:
      return {nullptr, a.offset, false};
  }
  return {address == nullptr ? nullptr : address + a.offset, 0, true};
}

}  // namespace

Status LaunchList::run(const sdk::KernelCall& call) const {
  auto& launcher = static_cast<Launcher&>(*call.context);
  thread_local std::vector<Bound> bound;  // grows to the longest list of arguments, then stays
  for (const Launch& launch : *launches_) {
    bound.clear();
    for (const Argument& a : launch.arguments) {
      if (a.kind != Argument::kFault) {
        bound.push_back(bind(a, call));
        continue;
      }
      auto word = launcher.fault_word(work_);
      if (!word.ok()) return word.status();
      bound.push_back({*word, 0, true});
    }
    if (launch.product != nullptr) {
      BP_SDK_RETURN_IF_ERROR(launcher.product(*launch.product, bound[0].address, bound[1].address,
                                              bound[2].address, bound[3].address, bound[4].address,
                                              work_));
      continue;
    }
    BP_SDK_RETURN_IF_ERROR(
        launch.program == nullptr
            ? launcher.fill_zero(bound[0].address, launch.fill_bytes, work_)
            : launcher.launch(*launch.program, bound, launch.items, launch.group, work_));
  }
  return {};
}

}  // namespace backplane::kernels
