#!/bin/sh
# Print "EMULATOR;-L;SYSROOT", as CMAKE_CROSSCOMPILING_EMULATOR wants it, to run programs of aarch64 here.
# usage: qemu_aarch64.sh FOLDER
# Uses an installed qemu, else unpacks two Debian packages into FOLDER: no root, nothing is installed.
set -e
folder=$(mkdir -p "$1" && cd "$1" && pwd)

# fetch PACKAGE FILE: unpack one package, unless FILE is there
fetch() {
    [ -e "$folder/$2" ] && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
        echo "To run programs of aarch64 this machine lacks $1 (its Debian name)." >&2
        exit 1
    }
    cd "$folder"
    apt-get -q download "$1" >&2 || {
        mkdir -p lists/partial
        apt-get -q -o Dir::State::lists="$folder/lists" update >&2
        apt-get -q -o Dir::State::lists="$folder/lists" download "$1" >&2
    }
    dpkg-deb --fsys-tarfile "$1"_*.deb | tar -x "./${3:-$2}"
    rm -f "$1"_*.deb
}

emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || {
    fetch qemu-user-static usr/bin/qemu-aarch64-static
    emulator=$folder/usr/bin/qemu-aarch64-static
}
sysroot=/usr/aarch64-linux-gnu
[ -e $sysroot/lib/ld-linux-aarch64.so.1 ] || {
    fetch libc6-arm64-cross usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1 usr/aarch64-linux-gnu/lib
    sysroot=$folder$sysroot
}
echo "$emulator;-L;$sysroot"
