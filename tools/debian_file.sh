#!/bin/sh
# Unpack a Debian package into a folder, unless a file of it is there: no root, nothing is installed.
# usage: debian_file.sh FOLDER PACKAGE FILE [PART]    PART: the only folder or file of the package to unpack
set -e
cd "$1"
[ ! -e "$3" ] || exit 0
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "This machine lacks $2 (its Debian name), and apt-get and dpkg-deb, which would fetch it." >&2
    exit 1
}
apt-get -q download "$2" >&2 || {
    mkdir -p lists/partial
    apt-get -q -o Dir::State::lists="$PWD/lists" update >&2
    apt-get -q -o Dir::State::lists="$PWD/lists" download "$2" >&2
}
dpkg-deb --fsys-tarfile "$2"_*.deb | tar -x ${4:+"./$4"}
rm -f "$2"_*.deb
