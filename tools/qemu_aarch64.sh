#!/bin/sh
# Print "EMULATOR;-L;SYSROOT", as CMAKE_CROSSCOMPILING_EMULATOR wants it, to run programs of aarch64 here.
# usage: qemu_aarch64.sh FOLDER
# Uses what is installed, else unpacks two Debian packages into FOLDER: no root, nothing is installed.
# The static qemu alone: the dynamic one has plugins, whose assertions (7.2) fail in the child of a fork with threads.
set -e
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)

emulator=$(command -v qemu-aarch64-static) || {
    emulator=usr/bin/qemu-aarch64-static
    sh "$here/debian_file.sh" "$folder" qemu-user-static $emulator $emulator
    emulator=$folder/$emulator
}
sysroot=/usr/aarch64-linux-gnu
[ -e $sysroot/lib/ld-linux-aarch64.so.1 ] || {
    sh "$here/debian_file.sh" "$folder" libc6-arm64-cross usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1 \
        usr/aarch64-linux-gnu/lib
    sysroot=$folder$sysroot
}
echo "$emulator;-L;$sysroot"
