# find_package(Backplane): backplane_add_plugin, and the headers of the ABI and the SDK as Backplane::sdk.
include("${CMAKE_CURRENT_LIST_DIR}/BackplanePlugin.cmake")
if(NOT TARGET Backplane::sdk)
  add_library(Backplane::sdk ALIAS backplane_sdk)
endif()
