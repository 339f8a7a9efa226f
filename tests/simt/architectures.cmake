# What becomes of CMake's words for architectures: cmake -P architectures.cmake
cmake_minimum_required(VERSION 3.22)
include(${CMAKE_CURRENT_LIST_DIR}/../../tools/cmake/cuda_architectures.cmake)

function(expect asked list has_sm_90a)
  perdure_cuda_architectures(got has ASKED ${asked} NATIVE ${native} ALL "75-real;80-real;90-real;120-real;120-virtual"
    ALL_MAJOR "75-real;80-real;90-real;100-real;100-virtual")
  if(NOT got STREQUAL list OR NOT has STREQUAL has_sm_90a)
    message(FATAL_ERROR "${asked}: ${got}, sm_90a ${has}; expected ${list}, ${has_sm_90a}")
  endif()
endfunction()

set(native 90-real)
expect("80;90" "80;90" ON)
expect("80-real;90-real;80-virtual" "80-real;90-real;80-virtual" ON)
expect("90a" "90a" ON)
expect("80;86" "80;86" OFF)
expect("90-virtual" "90-virtual" OFF)
expect("native" "90-real" ON)
expect("all" "80-real;90-real;120-real;120-virtual" ON)
expect("all-major" "80-real;90-real;100-real;100-virtual" ON)
set(native 86-real)
expect("native" "86-real" OFF)
expect("native;90" "86-real;90" ON)
