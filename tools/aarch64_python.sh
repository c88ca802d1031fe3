#!/bin/sh
# Print the command that runs CPython for aarch64 here, under emulation: "QEMU -L ROOT ROOT/usr/bin/python3.N".
# usage: aarch64_python.sh FOLDER
# Debian's arm64 packages are unpacked into FOLDER/python: no root, nothing is installed, no other package is touched.
# On Ubuntu arm64 lies on other servers than amd64: run it in a container of Debian there.
set -e
here=$(dirname "$0")
folder=$(mkdir -p "$1" && cd "$1" && pwd)
emulator=$(sh "$here/qemu_aarch64.sh" "$folder")
root=$folder/python

if [ ! -e "$root/complete" ]; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
        echo "To run CPython for aarch64 this machine lacks apt-get and dpkg-deb, which fetch Debian's." >&2
        exit 1
    }
    # A state of apt of its own, in which nothing is installed and arm64 is the architecture.
    state=$folder/apt
    rm -rf "$state" "$root"
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$root"
    : >"$state/status"
    private() {
        apt-get -q -o Dir::State="$state" -o Dir::State::lists="$state/lists" -o Dir::State::status="$state/status" \
            -o Dir::Cache="$state/cache" -o APT::Architecture=arm64 -o APT::Architectures::=arm64 \
            -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@" >&2
    }
    private update
    # libstdc++6: NumPy's wheel needs it.
    private install --yes --no-install-recommends --download-only python3-minimal libpython3-stdlib libstdc++6
    for package in "$state"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root"
    done
    rm -rf "$state"
    : >"$root/complete"
fi
echo "${emulator%%;*} -L $root $(ls "$root"/usr/bin/python3.[0-9]* | grep -v config | tail -n 1)"
