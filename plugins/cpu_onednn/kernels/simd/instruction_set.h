// The instruction set that the own kernels and oneDNN are held to.
#pragma once

#include <cstdint>

namespace backplane::onednn {

enum class InstructionSet : std::uint8_t { kSse41, kAvx2, kAvx512 };

// What the processor has.
InstructionSet best_instruction_set();

// What is used: the best, or what BACKPLANE_CPU_ISA (sse41, avx2, avx512) or oneDNN's own
// ONEDNN_MAX_CPU_ISA says. Decided at the first call, which comes before anything of oneDNN; throws
// where the variable names no instruction set, or one that the processor lacks.
InstructionSet instruction_set();

// Whether oneDNN computes with bfloat16 here. Without, such products run in float32 (see upcast.h).
bool has_bfloat16();

}  // namespace backplane::onednn
