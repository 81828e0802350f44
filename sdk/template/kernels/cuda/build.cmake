backplane_use_kernels()
backplane_add_plugin(@NAME@ SOURCES src/@NAME@.cpp src/driver.cpp LIBRARIES backplane_kernels ${CMAKE_DL_LIBS})
