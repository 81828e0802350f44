# Where things are installed. A wheel puts everything under the package folder `torch_backplane`
# (pyproject.toml, wheel.install-dir); a plain `cmake --install` uses the usual prefix layout.
if(SKBUILD)
  set(BACKPLANE_INSTALL_PACKAGE ".")
  set(BACKPLANE_INSTALL_PLUGINS plugins)
  set(BACKPLANE_INSTALL_TOOLS bin)
  set(BACKPLANE_INSTALL_INCLUDE include)
  set(BACKPLANE_INSTALL_CMAKE cmake)
else()
  set(BACKPLANE_INSTALL_PACKAGE lib/torch_backplane)
  set(BACKPLANE_INSTALL_PLUGINS lib/backplane/plugins)
  set(BACKPLANE_INSTALL_TOOLS bin)
  set(BACKPLANE_INSTALL_INCLUDE include)
  set(BACKPLANE_INSTALL_CMAKE lib/cmake/backplane)
endif()

# What a vendor's build includes to get `backplane_add_plugin`.
install(FILES
  "${backplane_SOURCE_DIR}/cmake/BackplanePlugin.cmake"
  "${backplane_SOURCE_DIR}/cmake/backplane_plugin.map"
  DESTINATION "${BACKPLANE_INSTALL_CMAKE}")
