"""The code blocks of a Markdown file: `python tools/readme.py README.md` shows and runs the first Python block."""

import re
import sys
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text):
    """(language, source) of every fenced block that names its language, in order."""
    return _BLOCK.findall(text)


def main(path):
    source = next(source for language, source in blocks(Path(path).read_text()) if language == "python")
    print(source)
    exec(compile(source, path, "exec"), {"__name__": "__readme__"})


if __name__ == "__main__":
    main(*sys.argv[1:])
