# A room of core is one folder = one static library `backplane_<name>`; every `*_test.cpp` in it goes
# into the GoogleTest executable `backplane_<name>_tests`.

# backplane_glob(<out_sources> <out_tests> <folder>)
function(backplane_glob out_sources out_tests folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  set(${out_sources} ${sources} PARENT_SCOPE)
  set(${out_tests} ${tests} PARENT_SCOPE)
endfunction()

# backplane_add_tests(<name> SOURCES ... [LIBRARIES ...] [LOADS_PLUGINS])
# Does nothing without BACKPLANE_BUILD_TESTS or without sources.
function(backplane_add_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LOADS_PLUGINS" "" "SOURCES;LIBRARIES")
  if(NOT BACKPLANE_BUILD_TESTS OR NOT arg_SOURCES)
    return()
  endif()
  set(target backplane_${name}_tests)
  add_executable(${target} ${arg_SOURCES})
  backplane_warnings(${target} TEST)
  target_include_directories(${target} PRIVATE "${backplane_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE
    BACKPLANE_TEST_SOURCE_DIR="${backplane_SOURCE_DIR}"
    BACKPLANE_TEST_PLUGIN_DIR="${BACKPLANE_PLUGIN_OUTPUT_DIR}")
  if(arg_LOADS_PLUGINS)
    add_dependencies(${target} backplane_plugins)
  endif()
  # PRE_TEST: the list is read when ctest runs, so that a build never executes what it built.
  gtest_discover_tests(${target} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${name} TIMEOUT 300
    ENVIRONMENT "BACKPLANE_STATE_DIR=${backplane_BINARY_DIR}/state")
endfunction()

# backplane_add_room(<name> [LIBRARIES ...] [LOADS_PLUGINS])
function(backplane_add_room name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LOADS_PLUGINS" "" "LIBRARIES")
  set(target backplane_${name})
  backplane_glob(sources tests "${CMAKE_CURRENT_SOURCE_DIR}")
  if(sources)
    add_library(${target} STATIC ${sources})
    backplane_warnings(${target})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)  # headers only
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} "${backplane_SOURCE_DIR}")
  target_link_libraries(${target} ${scope} ${arg_LIBRARIES})
  set(loads_plugins)
  if(arg_LOADS_PLUGINS)
    set(loads_plugins LOADS_PLUGINS)
  endif()
  backplane_add_tests(${name} SOURCES ${tests} LIBRARIES ${target} ${loads_plugins})
endfunction()
