backplane_add_plugin(@NAME@ SOURCES src/@NAME@.cpp)
