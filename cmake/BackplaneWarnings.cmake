# backplane_warnings(<target> [TORCH | TEST])
#
# -Wconversion stays off where torch's or GoogleTest's macros expand in our own lines.
function(backplane_warnings target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;TEST" "" "")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic)
  if(NOT arg_TORCH AND NOT arg_TEST)
    target_compile_options(${target} PRIVATE -Wconversion)
  endif()
  if(BACKPLANE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
