"""PTX without comments, indentation and blank lines, which are a sixth of what clang writes.

python compact_ptx.py INPUT OUTPUT. Called by cmake/device_code.cmake; PTX has no strings that hold any of these.
"""

import re
import sys
from pathlib import Path

source, output = sys.argv[1:]
lines = (
    re.sub(r"\s+", " ", line.split("//")[0]).strip().replace(", ", ",")
    for line in Path(source).read_text().splitlines()
)
Path(output).write_text("".join(f"{line}\n" for line in lines if line))
