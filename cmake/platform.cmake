# Where this can be built: 64-bit Linux with glibc, CPython with the stable ABI. Elsewhere the build stops with a
# sentence, not with the first line that a compiler does not know; README.md has the table.

# The system and the processor; sets MMF_X86_64 in the caller.
function(mmf_check_platform)
  set(x86_64 0)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    set(x86_64 1)
  endif()
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8
     OR NOT (x86_64 OR CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$"))
    math(EXPR bits "8 * ${CMAKE_SIZEOF_VOID_P}")
    message(FATAL_ERROR "matmul_fused builds on 64-bit Linux on x86-64 and aarch64, not on "
                        "${CMAKE_SYSTEM_NAME} ${CMAKE_SYSTEM_PROCESSOR} (${bits} bits).")
  endif()
  include(CheckSymbolExists)
  check_symbol_exists(__GLIBC__ features.h MMF_GLIBC)
  if(NOT MMF_GLIBC)
    message(FATAL_ERROR "matmul_fused builds with glibc, not with another C library (musl, as on Alpine).")
  endif()
  set(MMF_X86_64 ${x86_64} PARENT_SCOPE)
endfunction()

# The Python that Python_EXECUTABLE names.
function(mmf_check_python)
  set(ask "import sys, sysconfig as s; print(sys.implementation.name, s.get_config_var('Py_GIL_DISABLED') or 0)")
  execute_process(COMMAND "${Python_EXECUTABLE}" -c "${ask}" OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  if(said STREQUAL "cpython 1")
    message(FATAL_ERROR "matmul_fused uses the stable ABI of CPython 3.11, which the free-threaded ${Python_EXECUTABLE} "
                        "does not have: build with a CPython that has the GIL.")
  elseif(NOT said STREQUAL "cpython 0")
    message(FATAL_ERROR "matmul_fused uses the stable ABI of CPython, ${Python_EXECUTABLE} is another Python: ${said}.")
  endif()
endfunction()
