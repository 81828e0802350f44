# Python for core/cpython and core/torch. BACKPLANE_OWN_FRONT_END: it is a version whose frames and
# bytecode core/cpython knows; with another the package has TorchDynamo's front end alone. Without
# torch core/cpython is left out where no Python is installed.

set(Python3_FIND_VIRTUALENV FIRST)
if(BACKPLANE_WITH_TORCH)
  set(required REQUIRED)
endif()
find_package(Python3 3.11...<3.15 ${required} COMPONENTS Interpreter Development.Module
  OPTIONAL_COMPONENTS Development.Embed)
if(Python3_Development.Module_FOUND)
  # Where an embedded interpreter finds its standard library.
  execute_process(COMMAND "${Python3_EXECUTABLE}" -c "import sys; print(sys.base_prefix)"
    OUTPUT_VARIABLE BACKPLANE_PYTHON_HOME OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(BACKPLANE_OWN_FRONT_END OFF)
if(Python3_Development.Module_FOUND AND Python3_VERSION VERSION_LESS 3.13)
  set(BACKPLANE_OWN_FRONT_END ON)
else()
  message(STATUS "Backplane: no Python 3.11 or 3.12 with headers, core/cpython skipped")
endif()
