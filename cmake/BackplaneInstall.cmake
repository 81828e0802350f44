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
else()
  set(BACKPLANE_INSTALL_PACKAGE lib/torch_backplane)
  set(BACKPLANE_INSTALL_PLUGINS lib/backplane/plugins)
  set(BACKPLANE_INSTALL_TOOLS bin)
  set(BACKPLANE_INSTALL_INCLUDE include)
  set(BACKPLANE_INSTALL_CMAKE lib/cmake/backplane)
  set(BACKPLANE_INSTALL_TEMPLATE share/backplane/template)
  set(BACKPLANE_INSTALL_SDK lib/cmake/sdk)
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
