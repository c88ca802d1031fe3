"""One text of a C source and everything it includes by "...": what a compiler without files (hipRTC) is given.

python flatten.py ROOT SOURCE OUTPUT: SOURCE and its includes are relative to ROOT. Headers have guards and tables do
not, so every include is expanded where it stands. Called by cmake/device_code.cmake.
"""

import re
import sys
from pathlib import Path


def flatten(root, name):
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", (root / name).read_text(), flags=re.DOTALL)
    lines = []
    for line in text.split("\n"):
        include = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if include:
            lines += flatten(root, include[1])
        elif line.strip():
            lines.append(line.rstrip())
    return lines


root, source, output = sys.argv[1:]
Path(output).write_text("\n".join(flatten(Path(root), source)) + "\n")
