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
    "  pip install torch==2.13.0\n"
    "  pip install --no-build-isolation .\n"
    "or configure with -DBACKPLANE_WITH_TORCH=OFF for the core alone.")
endif()

find_package(Torch REQUIRED CONFIG PATHS "${BACKPLANE_TORCH_DIR}/share/cmake/Torch" NO_DEFAULT_PATH)
find_library(BACKPLANE_TORCH_PYTHON torch_python PATHS "${BACKPLANE_TORCH_DIR}/lib"
  REQUIRED NO_DEFAULT_PATH NO_CACHE)

add_library(backplane_libtorch INTERFACE)
target_link_libraries(backplane_libtorch INTERFACE ${TORCH_LIBRARIES} "${BACKPLANE_TORCH_PYTHON}")
target_include_directories(backplane_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_compile_definitions(backplane_libtorch INTERFACE AT_PER_OPERATOR_HEADERS)
if(TORCH_CXX_FLAGS)
  separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(backplane_libtorch INTERFACE ${torch_flags})
endif()
