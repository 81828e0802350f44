# backplane_add_plugin(<name> SOURCES ... [OBJECTS ...] [LIBRARIES ...] [INCLUDES ...]
#                      [DEFINITIONS ...] [TESTS ...])
#
# Builds libbackplane_<name>.so, which exports `backplane_plugin_negotiate` and nothing else.
# OBJECTS were compiled for another target.
# Works in the Backplane tree, in a plugin built alone from the tree, and from an installed wheel
# (include this file from `torch_backplane/cmake`).

set(BACKPLANE_PLUGIN_MODULE_DIR "${CMAKE_CURRENT_LIST_DIR}")

if(NOT TARGET backplane_sdk)
  get_filename_component(_backplane_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
  add_library(backplane_plugin_api INTERFACE)
  add_library(backplane_sdk INTERFACE)
  target_link_libraries(backplane_sdk INTERFACE backplane_plugin_api)
  if(EXISTS "${_backplane_root}/plugin_api/include")
    target_include_directories(backplane_plugin_api SYSTEM INTERFACE "${_backplane_root}/plugin_api/include")
    target_include_directories(backplane_sdk SYSTEM INTERFACE "${_backplane_root}/sdk/include")
  else()
    target_include_directories(backplane_plugin_api SYSTEM INTERFACE "${_backplane_root}/include")
  endif()
endif()

# backplane_use_kernels(): generated kernels for devices with a C-like kernel language, built with
# the plugin; link backplane_kernels.
function(backplane_use_kernels)
  get_filename_component(root "${BACKPLANE_PLUGIN_MODULE_DIR}/.." ABSOLUTE)
  if(NOT TARGET backplane_kernels)
    add_subdirectory("${root}/sdk/kernels" "${CMAKE_CURRENT_BINARY_DIR}/backplane_kernels")
  endif()
endfunction()

function(backplane_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;OBJECTS;LIBRARIES;INCLUDES;DEFINITIONS;TESTS")
  if(NOT arg_SOURCES)
    message(STATUS "Backplane: plugin ${name} has no sources, skipped")
    return()
  endif()
  set(target backplane_plugin_${name})

  # Objects, so that the plugin's own unit tests reach what the library hides.
  add_library(${target}_objects OBJECT ${arg_SOURCES})
  target_compile_features(${target}_objects PUBLIC cxx_std_20)
  target_link_libraries(${target}_objects PUBLIC backplane_sdk ${arg_LIBRARIES})
  target_include_directories(${target}_objects PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}" ${arg_INCLUDES})
  target_compile_definitions(${target}_objects PRIVATE ${arg_DEFINITIONS})
  set_target_properties(${target}_objects PROPERTIES POSITION_INDEPENDENT_CODE ON
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  # g++ merges unique symbols of all libraries in the process, and pins the library that has them.
  target_compile_options(${target}_objects PRIVATE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>")
  # Integers of tensors wrap around where they overflow, as PyTorch's do.
  target_compile_options(${target}_objects PRIVATE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-fwrapv>")
  if(COMMAND backplane_warnings)
    backplane_warnings(${target}_objects)
  endif()

  add_library(${target} MODULE "$<TARGET_OBJECTS:${target}_objects>" ${arg_OBJECTS})
  target_link_libraries(${target} PRIVATE backplane_sdk ${arg_LIBRARIES})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME backplane_${name} PREFIX lib
    # The same in the build tree: CMake would fill up a run path that it is to shorten with empty parts,
    # which the loader takes for the current directory.
    LINKER_LANGUAGE CXX INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON
    LINK_DEPENDS "${BACKPLANE_PLUGIN_MODULE_DIR}/backplane_plugin.map")
  target_link_options(${target} PRIVATE
    "-Wl,--version-script=${BACKPLANE_PLUGIN_MODULE_DIR}/backplane_plugin.map"
    # Static copies of vendor libraries must not be replaced by the host's symbols of the same name.
    -Wl,--exclude-libs,ALL -Wl,-Bsymbolic-functions
    # Worker threads of a vendor's runtime may outlive dlclose.
    -Wl,-z,nodelete)
  if(NOT BACKPLANE_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)  # sanitizer runtimes may come from the program
  endif()

  if(TARGET backplane_plugins)
    add_dependencies(backplane_plugins ${target})
  endif()
  if(BACKPLANE_PLUGIN_OUTPUT_DIR)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${BACKPLANE_PLUGIN_OUTPUT_DIR}")
  endif()
  if(BACKPLANE_INSTALL_PLUGINS)
    install(TARGETS ${target} LIBRARY DESTINATION "${BACKPLANE_INSTALL_PLUGINS}")
  endif()
  if(arg_TESTS AND COMMAND backplane_add_tests)
    backplane_add_tests(plugin_${name} SOURCES ${arg_TESTS} LIBRARIES ${target}_objects)
  endif()
endfunction()
