#!/bin/sh
# Build and run test_cpu without CMake: sh tests/c/build.sh [extra flags, such as -fsanitize=thread]
# The fork test starts threads in the child: under -fsanitize=thread set TSAN_OPTIONS=die_after_fork=0
set -e
cd "$(dirname "$0")/../.."
out=${OUT:-/tmp/mmf_test_cpu}
flags="-std=gnu11 -O3 -g -Wall -Wextra -Werror -Icsrc $*"
mkdir -p "$out"
objects=
for file in csrc/problem/status.c csrc/problem/tensor.c csrc/problem/activation.c \
    csrc/problem/environment.c csrc/cpu/*.c csrc/cpu/kernels/*.c tests/c/test_cpu.c tests/c/cpu_*.c; do
    object=$out/$(basename "$file" .c).o
    isa=
    case $file in *_avx2.c) isa="-mavx2 -mfma -mf16c" ;; esac
    ${CC:-gcc} $flags $isa -c "$file" -o "$object"
    objects="$objects $object"
done
${CC:-gcc} $flags $objects -o "$out/test_cpu" -lm -lpthread
[ -n "$NO_RUN" ] || "$out/test_cpu"
