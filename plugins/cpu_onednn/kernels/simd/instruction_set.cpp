#include "kernels/simd/instruction_set.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels/primitives/dnnl_support.h"

namespace backplane::onednn {
namespace {

struct Level {
  InstructionSet set;
  const char *name, *title;
  dnnl_cpu_isa_t limit;
};
constexpr Level kLevels[] = {
    {InstructionSet::kSse41, "sse41", "SSE4.1", dnnl_cpu_isa_sse41},
    {InstructionSet::kAvx2, "avx2", "AVX2", dnnl_cpu_isa_avx2},
    // With all that the processor has beside.
    {InstructionSet::kAvx512, "avx512", "AVX-512", dnnl_cpu_isa_default},
};

void hold_to(const std::string& wanted) {
  const auto* const level = std::find_if(std::begin(kLevels), std::end(kLevels),
                                         [&](const Level& l) { return wanted == l.name; });
  if (level == std::end(kLevels))
    throw std::runtime_error("BACKPLANE_CPU_ISA is '" + wanted +
                             "'; it must be one of sse41, avx2 and avx512, or empty");
  if (level->set > best_instruction_set())
    throw std::runtime_error("BACKPLANE_CPU_ISA is '" + wanted + "', but this processor has no " +
                             level->title);
  if (dnnl_set_max_cpu_isa(level->limit) != dnnl_success)
    throw std::runtime_error(std::string("oneDNN cannot be held to ") + level->title +
                             ": it was built without ONEDNN_ENABLE_MAX_CPU_ISA");
}

}  // namespace

InstructionSet best_instruction_set() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return InstructionSet::kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::kAvx2;
  return InstructionSet::kSse41;
}

InstructionSet instruction_set() {
  static const InstructionSet chosen = [] {
    const char* const wanted = std::getenv("BACKPLANE_CPU_ISA");
    if (wanted != nullptr && *wanted != '\0') hold_to(wanted);
    // What oneDNN is held to holds the own kernels as well.
    const auto effective = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
    const auto has = [&](dnnl_cpu_isa_t isa) { return (effective & isa) == unsigned{isa}; };
    const InstructionSet allowed = has(dnnl_cpu_isa_avx512_core) ? InstructionSet::kAvx512
                                   : has(dnnl_cpu_isa_avx2)      ? InstructionSet::kAvx2
                                                                 : InstructionSet::kSse41;
    return std::min(allowed, best_instruction_set());
  }();
  return chosen;
}

bool has_bfloat16() {
  static const bool found = [] {
    const auto image = any_desc(Type::kBF16, {1, 16, 8, 8});
    const auto matrix = dnnl_desc(Type::kBF16, {16, 16}, {16, 1});
    const dnnl::matmul::primitive_desc product(engine(), matrix, matrix, matrix, {},
                                               /*allow_empty=*/true);
    const dnnl::convolution_forward::primitive_desc convolution(
        engine(), dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, image,
        any_desc(Type::kBF16, {16, 16, 1, 1}), image, {1, 1}, {0, 0}, {0, 0}, {}, true);
    return product.get(true) != nullptr && convolution.get(true) != nullptr;
  }();
  return found;
}

}  // namespace backplane::onednn
