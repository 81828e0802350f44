# Where things are installed. A wheel puts everything under the package folder `torch_backplane`
# (pyproject.toml, wheel.install-dir); a plain `cmake --install` uses the usual prefix layout.
if(SKBUILD)
  set(BACKPLANE_INSTALL_PACKAGE ".")
  set(BACKPLANE_INSTALL_PLUGINS plugins)
  set(BACKPLANE_INSTALL_TOOLS bin)
  set(BACKPLANE_INSTALL_INCLUDE include)
  set(BACKPLANE_INSTALL_CMAKE cmake)
  set(BACKPLANE_INSTALL_TEMPLATE template)
  set(BACKPLANE_INSTALL_SDK sdk)
  set(BACKPLANE_INSTALL_DOCS .)
else()
  set(BACKPLANE_INSTALL_PACKAGE lib/torch_backplane)
  set(BACKPLANE_INSTALL_PLUGINS lib/backplane/plugins)
  set(BACKPLANE_INSTALL_TOOLS bin)
  set(BACKPLANE_INSTALL_INCLUDE include)
  set(BACKPLANE_INSTALL_CMAKE lib/cmake/backplane)
  set(BACKPLANE_INSTALL_TEMPLATE share/backplane/template)
  set(BACKPLANE_INSTALL_SDK lib/cmake/sdk)
  set(BACKPLANE_INSTALL_DOCS share/doc/backplane)
endif()

# What a vendor's build finds.
include(CMakePackageConfigHelpers)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/BackplaneConfigVersion.cmake"
  VERSION "${PROJECT_VERSION}" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  "${backplane_SOURCE_DIR}/cmake/BackplaneConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/BackplaneConfigVersion.cmake"
  "${backplane_SOURCE_DIR}/cmake/BackplanePlugin.cmake"
  "${backplane_SOURCE_DIR}/cmake/backplane_plugin.map"
  DESTINATION "${BACKPLANE_INSTALL_CMAKE}")

# What a vendor reads; links between the pages hold.
foreach(page guide_vendors certify check_mode faults isolation errors ops guide_users)
  install(FILES "${backplane_SOURCE_DIR}/docs/${page}.md" DESTINATION "${BACKPLANE_INSTALL_DOCS}/docs")
endforeach()
install(FILES "${backplane_SOURCE_DIR}/plugin_api/VERSIONING.md"
  DESTINATION "${BACKPLANE_INSTALL_DOCS}/plugin_api")
foreach(room kernels kernelgen)
  install(FILES "${backplane_SOURCE_DIR}/sdk/${room}/README.md"
    DESTINATION "${BACKPLANE_INSTALL_DOCS}/sdk/${room}")
endforeach()
install(DIRECTORY "${backplane_SOURCE_DIR}/examples/" DESTINATION "${BACKPLANE_INSTALL_DOCS}/examples"
  FILES_MATCHING PATTERN "*.cpp" PATTERN "*.c" PATTERN "CMakeLists.txt")
