# One object per instruction set: which file of csrc/cpu/kernels gets which compiler flags. All other files are built
# for the ABI floor; CPUID decides at run time which rows may run (csrc/cpu).
#
# A row: file name without .c, the architecture that can build it, its flags. Elsewhere the file is left out of the
# build, and `#if defined(__x86_64__)` leaves its kernel out of the list in csrc/cpu/rows.h.
set(MMF_AVX512 "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512 -ffp-contract=fast -O2")
set(MMF_ISA_ROWS
    "blocked_amx|x86_64|${MMF_AVX512} -mamx-tile -mamx-bf16"
    "blocked_amx_split|x86_64|${MMF_AVX512} -mamx-tile -mamx-bf16"
    "blocked_avx512_bf16|x86_64|${MMF_AVX512} -mavx512bf16"
    "blocked_avx512|x86_64|${MMF_AVX512}"
    "blocked_avx2|x86_64|-mavx2 -mfma -mf16c -ffp-contract=fast")

# Set the flags of every row on its source file; drop from the list what this architecture cannot build.
function(mmf_apply_isa_flags sources)
  set(kept ${${sources}})
  foreach(row IN LISTS MMF_ISA_ROWS)
    string(REPLACE "|" ";" row "${row}")
    list(GET row 0 name)
    list(GET row 1 architecture)
    list(GET row 2 flags)
    set(source "${CMAKE_CURRENT_SOURCE_DIR}/csrc/cpu/kernels/${name}.c")
    if(architecture STREQUAL "x86_64" AND NOT MMF_X86_64)
      list(REMOVE_ITEM kept "${source}")
    else()
      separate_arguments(flags)
      # GCC's second scheduling pass costs the tiles 10 % (measured on Zen 3).
      list(APPEND flags "$<$<C_COMPILER_ID:GNU>:-fno-schedule-insns2;-ftree-vectorize;-fvect-cost-model=dynamic>")
      # Some tunings do not fuse the products of a single chain (seen with GCC 13.3): a tile of one panel had other bits
      # than one of four, so results depended on the threads.
      list(APPEND flags "$<$<C_COMPILER_ID:GNU>:--param=avoid-fma-max-bits=0>")
      if(MMF_SANITIZE)
        list(APPEND flags -O1)
      endif()
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS ${flags})
    endif()
  endforeach()
  if(MMF_TILE_MODEL AND MMF_X86_64)
    set_property(SOURCE "${CMAKE_CURRENT_SOURCE_DIR}/csrc/cpu/features.c" APPEND PROPERTY COMPILE_DEFINITIONS MMF_TILE_MODEL)
    foreach(name IN ITEMS blocked_amx blocked_amx_split)
      set_property(SOURCE "${CMAKE_CURRENT_SOURCE_DIR}/csrc/cpu/kernels/${name}.c" APPEND PROPERTY COMPILE_OPTIONS
        -include "${CMAKE_CURRENT_SOURCE_DIR}/tests/c/tile_model.h")
    endforeach()
  endif()
  set(${sources} ${kept} PARENT_SCOPE)
endfunction()
