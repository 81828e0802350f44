# In the place of the stand-in: find_package(...) or find_library(...) of yours, and link it here.
backplane_add_plugin(@NAME@ SOURCES src/@NAME@.cpp src/library.cpp)
