#include "core/torch/guards/switches.h"

#include <array>

namespace backplane::guards {

namespace {

constexpr std::array<Switch, 26> kSwitches{{
    {"sys", "getrecursionlimit"},
    {"sys", "getswitchinterval"},
    {"sys", "get_int_max_str_digits"},
    {"torch._C", "is_anomaly_enabled"},
    {"torch._C", "is_anomaly_check_nan_enabled"},
    {"torch._C", "_get_mkldnn_enabled"},
    {"torch._C", "_get_mkldnn_deterministic"},
    {"torch._C", "_get_nnpack_enabled"},
    {"torch._C", "_get_cudnn_enabled"},
    {"torch._C", "_get_cudnn_benchmark"},
    {"torch._C", "_get_cudnn_deterministic"},
    {"torch._C", "_get_math_sdp_enabled"},
    {"torch._C", "_get_flash_sdp_enabled"},
    {"torch._C", "_get_mem_efficient_sdp_enabled"},
    {"torch._C", "_get_cudnn_sdp_enabled"},
    {"torch._C", "_get_overrideable_sdp_enabled"},
    {"torch._C", "_get_cublas_allow_tf32"},
    {"torch._C", "_get_cudnn_allow_tf32"},
    {"torch._C", "_get_warnAlways"},
    {"torch._C", "_get_float32_matmul_precision"},
    {"torch._C", "_get_deterministic_algorithms_warn_only"},
    {"torch._C", "_get_deterministic_fill_uninitialized_memory"},
    {"torch._C", "_get_privateuse1_backend_name"},
    {"torch._C", "get_num_threads"},
    {"torch._C", "get_num_interop_threads"},
    {"torch._C", "_debug_only_are_vmap_fallback_warnings_enabled"},
}};

}  // namespace

std::span<const Switch> switches() { return kSwitches; }

}  // namespace backplane::guards
