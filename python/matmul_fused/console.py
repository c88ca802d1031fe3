"""Tables and progress of the command line: rich where it is installed, plain text else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from .report import table

_Item = TypeVar("_Item")


def show(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table: drawn by rich on a terminal, as plain text into a file or a pipe."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        drawn = False
    else:
        drawn = sys.stdout.isatty()
    if not drawn:
        print(table([header, *rows], title))
        return
    grid = Table(title=title, title_justify="left")
    for name, *cells in zip(header, *rows, strict=True):
        figures = all(cell[:1].isdigit() for cell in cells)
        grid.add_column(name, justify="right" if figures else "left", no_wrap=figures)
    for row in rows:
        grid.add_row(*row)
    Console().print(grid)


def progress(items: Sequence[_Item], what: str) -> Iterable[_Item]:
    """The items, with a bar on stderr while they are consumed, if that is a terminal."""
    if not sys.stderr.isatty():
        return items
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return _count(items, what)
    bar: Iterable[_Item] = track(items, what, console=Console(stderr=True))
    return bar


def _count(items: Sequence[_Item], what: str) -> Iterator[_Item]:
    for done, item in enumerate(items):
        print(f"\r{what} {done} of {len(items)}", end="", file=sys.stderr, flush=True)
        yield item
    print(f"\r{what} {len(items)} of {len(items)}", file=sys.stderr)
