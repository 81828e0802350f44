# Language, optimisation, sanitizers, output folders: what every target shares.

set(CMAKE_C_STANDARD 11)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# libtorch merges badly with exported inline symbols, so nothing is exported unless marked.
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# -g1: line numbers for back traces, at a tenth of the size of -g. NDEBUG follows BACKPLANE_ASSERTS.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_C_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
if(NOT BACKPLANE_ASSERTS AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_definitions(NDEBUG)
endif()

if(BACKPLANE_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(BACKPLANE_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
elseif(BACKPLANE_SANITIZE)
  message(FATAL_ERROR "BACKPLANE_SANITIZE=${BACKPLANE_SANITIZE}: want address, thread or nothing")
endif()
if(BACKPLANE_SANITIZE)
  # The checks make compiling with -O2 take long.
  add_compile_options(${sanitizers} -fno-omit-frame-pointer -O1)
  add_link_options(${sanitizers})
endif()

if(BACKPLANE_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(BACKPLANE_CCACHE ccache)
if(BACKPLANE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${BACKPLANE_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${BACKPLANE_CCACHE}")
endif()

# One folder for every plugin, so that a test or a tool names one search path.
set(BACKPLANE_PLUGIN_OUTPUT_DIR "${backplane_BINARY_DIR}/plugins")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${backplane_BINARY_DIR}/bin")
