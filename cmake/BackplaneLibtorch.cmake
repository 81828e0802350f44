# torch and pybind11 for the rooms that see them. Defines the target `backplane_libtorch`.
#
# pybind11 comes with torch's headers: a second copy has other internals and types would not match.

# Found without importing torch, which takes seconds.
execute_process(
  COMMAND "${Python3_EXECUTABLE}" -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE BACKPLANE_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT BACKPLANE_TORCH_DIR)
  message(FATAL_ERROR "torch is not installed for ${Python3_EXECUTABLE}.\n"
    "Install it first, then build without isolation:\n"
    "  pip install 'torch>=2.11,<2.14'\n"
    "  pip install --no-build-isolation .\n"
    "or configure with -DBACKPLANE_WITH_TORCH=OFF for the core alone.")
endif()

# Not by torch's own CMake package: that of a wheel with CUDA asks for a CUDA toolkit, of which
# nothing here needs a part. The definitions are those that it would give.
set(libraries)
foreach(library IN ITEMS torch_cpu c10 torch_python)
  find_library(BACKPLANE_LIB_${library} ${library} PATHS "${BACKPLANE_TORCH_DIR}/lib"
    REQUIRED NO_DEFAULT_PATH NO_CACHE)
  list(APPEND libraries "${BACKPLANE_LIB_${library}}")
endforeach()

add_library(backplane_libtorch INTERFACE)
target_link_libraries(backplane_libtorch INTERFACE ${libraries})
target_include_directories(backplane_libtorch SYSTEM INTERFACE
  "${BACKPLANE_TORCH_DIR}/include" "${BACKPLANE_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(backplane_libtorch INTERFACE AT_PER_OPERATOR_HEADERS
  USE_C10D_GLOO USE_DISTRIBUTED USE_RPC USE_TENSORPIPE)
# torch_python names libraries of CUDA that its own search path finds when it is loaded.
target_link_options(backplane_libtorch INTERFACE -Wl,--allow-shlib-undefined)
