# perdure_isa_sources(<target> <group> <file.c>...) compiles each file once for every instruction set and links all of them into the
# target. A file sees PD_ISA_LEVEL (0 portable, 1 AVX2, 2 AVX-512) and names its exports with
# PD_ISA_SYMBOL(name) of ckpt/base/cpu.h: name_avx2.
function(perdure_isa_sources target group)
  set(portable_flags -Wno-psabi) # vectors are arguments of static functions alone
  set(avx2_flags -mavx2 -mfma -mf16c)
  set(avx512_flags -mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512)
  set(levels portable)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND levels avx2 avx512)
  endif()
  set(level 0)
  foreach(isa ${levels})
    add_library(${target}_${group}_${isa} OBJECT ${ARGN})
    target_compile_options(${target}_${group}_${isa} PRIVATE -O3 ${${isa}_flags})
    target_compile_definitions(${target}_${group}_${isa} PRIVATE PD_ISA_LEVEL=${level} PD_ISA_NAME=${isa})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${group}_${isa}>)
    math(EXPR level "${level} + 1")
  endforeach()
endfunction()
