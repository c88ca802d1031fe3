#!/bin/sh
# Build and run test_cpu without CMake: sh tests/c/build.sh [extra flags, such as -fsanitize=thread]
#   CC="zig cc -target aarch64-linux-gnu.2.28" RUN="qemu-aarch64 -L SYSROOT" sh tests/c/build.sh: another architecture
# The fork test starts threads in the child: under -fsanitize=thread set TSAN_OPTIONS=die_after_fork=0
set -e
cd "$(dirname "$0")/../.."
out=${OUT:-/tmp/mmf_test_cpu}
cc=${CC:-gcc}
flags="-std=gnu11 -O3 -g -Wall -Wextra -Werror -Wno-psabi -Icsrc $*"
mkdir -p "$out"
architecture=$($cc -dM -E -x c /dev/null | sed -n 's/^#define __\(x86_64\|aarch64\)__ 1$/\1/p')
objects=
for file in csrc/problem/status.c csrc/problem/tensor.c csrc/problem/activation.c \
    csrc/problem/environment.c csrc/cpu/*.c csrc/cpu/kernels/*.c tests/c/test_cpu.c tests/c/cpu_*.c; do
    name=$(basename "$file" .c)
    # A row of cmake/isa_flags.cmake: "NAME|ARCHITECTURE|FLAGS"
    row=$(sed -n "s/^ *\"$name|\([^\"]*\)\".*/\1/p" cmake/isa_flags.cmake)
    isa=${row#*|}
    [ "${row%%|*}" = "${row:+$architecture}" ] || continue
    $cc $flags $isa -c "$file" -o "$out/$name.o"
    objects="$objects $out/$name.o"
done
$cc $flags $objects -o "$out/test_cpu" -lm -lpthread
[ -n "$NO_RUN" ] || $RUN "$out/test_cpu"
