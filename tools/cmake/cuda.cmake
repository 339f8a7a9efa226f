# CUDA. If there is nvcc, every kernel is compiled for the architectures of PERDURE_CUDA_ARCHITECTURES, whether or not this machine has a
# GPU. As in C, multiplications and additions are fused only where the source says so, and subnormals are flushed.
if(PERDURE_HAVE_CUDA)
  # The rows of trainer/math/cuda/architectures.c that this nvcc supports, and PTX for all others. Machine code for 8.0 also runs on
  # 8.6 and 8.9.
  set(rows 80-real 90-real 100-real 120-real 80-virtual)
  if(CMAKE_CUDA_ARCHITECTURES)
    set(rows ${CMAKE_CUDA_ARCHITECTURES})
  endif()
  set(PERDURE_CUDA_ARCHITECTURES "${rows}" CACHE STRING "compute capabilities that kernels are compiled for, or native, all, all-major")
  set(CMAKE_CUDA_ARCHITECTURES 80)
  enable_language(CUDA)
  # nvcc's own g++ may be older than the compiler that links, whose libstdc++ other libraries need.
  list(FILTER CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES EXCLUDE REGEX "/gcc/")
  include(${CMAKE_CURRENT_LIST_DIR}/cuda_architectures.cmake)
  perdure_cuda_architectures(CMAKE_CUDA_ARCHITECTURES PERDURE_CUDA_HAS_SM_90A ASKED ${PERDURE_CUDA_ARCHITECTURES}
    NATIVE ${CMAKE_CUDA_ARCHITECTURES_NATIVE} ALL ${CMAKE_CUDA_ARCHITECTURES_ALL} ALL_MAJOR ${CMAKE_CUDA_ARCHITECTURES_ALL_MAJOR})
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
    list(FILTER CMAKE_CUDA_ARCHITECTURES EXCLUDE REGEX "^1[0-9][0-9]")
  endif()
  if(NOT PERDURE_CUDA_HAS_SM_90A)
    message(STATUS "perdure: compiled without 9.0, so an H100 gets the attention kernels of 8.0 (mma.sync) and no wgmma")
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-ftz=true;-lineinfo;-Xcompiler=-Wall,-Werror,-fno-strict-aliasing>")
  find_path(PERDURE_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(PERDURE_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(PERDURE_NCCL_INCLUDE AND PERDURE_NCCL_LIBRARY)
    set(PERDURE_HAVE_NCCL ON)
  endif()
endif()
