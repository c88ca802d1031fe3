#!/bin/sh
# Print the command of valgrind, installed or unpacked from Debian's package into FOLDER (no root).
# usage: valgrind.sh FOLDER
set -e
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
command -v valgrind && exit 0
sh "$here/debian_file.sh" "$folder" valgrind usr/bin/valgrind.bin
echo "env VALGRIND_LIB=$folder/usr/libexec/valgrind $folder/usr/bin/valgrind.bin"
