#!/bin/sh
# Print a Python that can build the package, or fail with one sentence that names all this machine lacks.
# usage: find_python.sh [PYTHON]    PYTHON: the only candidate
candidates=${1:-python3 python3.14 python3.13 python3.12 python3.11}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
has_headers() { "$1" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

compiler=
for name in ${CC:-cc gcc clang}; do
    command -v "$name" >/dev/null && compiler=$name && break
done
python=
for name in $candidates; do
    new_enough "$name" || continue
    if has_headers "$name" && has_venv "$name"; then
        python=$name
        [ -n "$compiler" ] && echo "$name" && exit 0
        break
    fi
    python=${python:-$name}
done

missing=
lacks() { missing="${missing:+$missing; }$1"; }
if [ -z "$python" ]; then
    lacks "Python 3.11 or later"
else
    has_headers "$python" || lacks "the headers of $python (Debian: python3-dev)"
    has_venv "$python" || lacks "the module venv of $python (Debian: python3-venv)"
fi
[ -n "$compiler" ] || lacks "a C compiler (Debian: gcc)"
echo "To build matmul_fused this machine lacks: $missing." >&2
exit 1
