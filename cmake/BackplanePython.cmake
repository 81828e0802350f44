# Python for core/cpython and core/torch. The rooms of core/cpython know the frames and the bytecode
# of these versions only; without torch they are left out where none is installed.

set(Python3_FIND_VIRTUALENV FIRST)
if(BACKPLANE_WITH_TORCH)
  set(required REQUIRED)
endif()
find_package(Python3 3.11...<3.13 ${required} COMPONENTS Interpreter Development.Module
  OPTIONAL_COMPONENTS Development.Embed)
if(Python3_Development.Module_FOUND)
  # Where an embedded interpreter finds its standard library.
  execute_process(COMMAND "${Python3_EXECUTABLE}" -c "import sys; print(sys.base_prefix)"
    OUTPUT_VARIABLE BACKPLANE_PYTHON_HOME OUTPUT_STRIP_TRAILING_WHITESPACE)
else()
  message(STATUS "Backplane: no Python 3.11 or 3.12 with headers, core/cpython skipped")
endif()
