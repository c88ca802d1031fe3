# Toolchain file of the wheels: clang of the PyPI package ziglang (`zig cc`) with the symbol versions of glibc 2.28
# (manylinux_2_28), for x86-64 or aarch64 whatever the machine that builds.
#   ZIG=.../ziglang/zig cmake --toolchain cmake/zig.cmake -DMMF_ZIG_ARCH=aarch64 -S . -B build/aarch64
set(MMF_ZIG_ARCH x86_64 CACHE STRING "x86_64 or aarch64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MMF_ZIG_ARCH)

if(DEFINED ENV{ZIG})
  set(zig "$ENV{ZIG}")
else()
  find_program(zig zig NO_CACHE)
endif()
if(NOT zig)
  message(FATAL_ERROR "zig was not found: name it in the environment variable ZIG (pip install ziglang: "
                      "the file zig in the folder of the package).")
endif()

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${MMF_ZIG_ARCH})
set(CMAKE_C_COMPILER "${zig}" cc -target ${MMF_ZIG_ARCH}-linux-gnu.2.28)

# Left to itself zig traps on undefined behaviour in builds without optimisation, keeps frame pointers and writes debug
# information. What follows -O is its choice: it compiles -O3 as -O2 (no slower here, as measured with -Xclang -O3).
set(CMAKE_C_FLAGS_INIT "-fno-sanitize=undefined -fomit-frame-pointer -g0")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-s")

# GNU ar indexes no objects of other machines.
set(CMAKE_AR "${zig}" CACHE FILEPATH "")
set(CMAKE_C_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <OBJECTS>")
set(CMAKE_C_ARCHIVE_FINISH "<CMAKE_AR> ranlib <TARGET>")
