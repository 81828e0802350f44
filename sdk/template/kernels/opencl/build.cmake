find_package(OpenCL REQUIRED) # headers and the loader: Debian's opencl-headers and ocl-icd-opencl-dev
backplane_use_kernels()
backplane_add_plugin(@NAME@ SOURCES src/@NAME@.cpp LIBRARIES OpenCL::OpenCL backplane_kernels)
