// Words for kernels whose warps multiply matrices together, in CUDA C.
#include <backplane/kernelgen/kernel.hpp>

namespace backplane::kernelgen {
namespace {

// Who builds the texts with another compiler says BP_WARPS and brings the words. Addresses of
// shared memory are numbers; every access to it is an instruction that the compiler keeps, in the
// order of the text. Fragments of a warp are those of mma.m16n8k16 in the PTX ISA: lane l has of
// the left factor rows l / 4 and l / 4 + 8 and depths 2 * (l % 4) + {0, 1} and 8 more, of the right
// one those depths of column l / 4, of the result those rows and columns 2 * (l % 4) + {0, 1}.
constexpr std::string_view kMatrixWords = R"(
#ifndef BP_MATRIX_WORDS
#define BP_MATRIX_WORDS
#define BP_COLLECTIVE
#define BP_ONE_BY_ONE _Pragma("unroll 1")
#ifndef BP_WARPS
struct bp_bf16 {};
struct bp_f16 {};
typedef uint bp_shared;
BP_FN bp_shared bp_shared_at(const void* p) { return (uint)__cvta_generic_to_shared(p); }
BP_FN void bp_matrices(uint (&r)[4], bp_shared at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
BP_FN void bp_matrices_transposed(uint (&r)[4], bp_shared at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
BP_FN void bp_multiply(bp_bf16, float (&c)[4], const uint (&a)[4], uint b0, uint b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
BP_FN void bp_multiply(bp_f16, float (&c)[4], const uint (&a)[4], uint b0, uint b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
BP_FN uint bp_pack(bp_bf16, float low, float high) {
  uint y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
BP_FN uint bp_pack(bp_f16, float low, float high) {
  uint y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
BP_FN float bp_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The number of the block, read anew where it is asked for: what is computed of it needs no
// registers in between.
BP_FN uint bp_block() {
  uint x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}
BP_FN float bp_of_lane_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
BP_FN void bp_put_16(bp_shared at, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w));
}
// 16 bytes, or zeros; both addresses are multiples of 16.
BP_FN void bp_copy_16(bp_shared to, const void* from, bool is_zero) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(to), "l"(from), "r"(is_zero ? 0 : 16));
}
BP_FN void bp_close_copies() { asm volatile("cp.async.commit_group;"); }
BP_FN void bp_wait_for_copies() { asm volatile("cp.async.wait_group 0;"); }
#endif
#endif
)";

}  // namespace

std::string_view matrix_words() { return kMatrixWords; }

}  // namespace backplane::kernelgen
