"""The code blocks of a Markdown file: `python tools/readme.py README.md` shows and runs its Python blocks, in order.

A block that imports what is not installed is shown, and said not to have run.
"""

import ast
import importlib.util
import re
import sys
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text):
    """(language, source) of every fenced block that names its language, in order."""
    return _BLOCK.findall(text)


def missing(source):
    """Modules that the source imports by `import x` and that are not installed."""
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import))
    names = (alias.name for node in imports for alias in node.names)
    return [name for name in names if importlib.util.find_spec(name.partition(".")[0]) is None]


def main(path):
    names = {"__name__": "__readme__"}
    for source in (source for language, source in blocks(Path(path).read_text()) if language == "python"):
        print(source)
        absent = missing(source)
        if absent:
            print(f"not run: {', '.join(absent)} is not installed here\n")
        else:
            exec(compile(source, path, "exec"), names)
            print("ran\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
