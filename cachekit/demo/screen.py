"""What the demonstration shows: on standard error what it is doing, on standard output the table at the end.

On a terminal the process at work has a line that moves; elsewhere each process has a line when it begins and one when
it has ended, so that a log tells the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

PLAIN_WIDTH = 200
"""Columns where there is no terminal to ask: wide enough that no line is folded."""

_UNITS = ("B", "KiB", "MiB", "GiB")


class Screen:
    """Standard error while the demonstration works."""

    def __init__(self) -> None:
        self._console = console(sys.stderr)

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, soft_wrap=True)

    @contextmanager
    def working(self, title: str) -> Iterator[Callable[[str], None]]:
        """Show that ``title`` is at work, what it is doing (the function given) and how long it has been at it."""
        if not self._console.is_terminal:
            self.say(f"{title} ...")
            yield lambda doing: None
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda doing: bar.update(task, description=f"{title}: {doing}")


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Show the rows on standard output; fits into 80 columns."""
    drawn = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    drawn.add_column("pipeline", no_wrap=True)
    for name in ("cold", "warm", "ratio", "hits", "misses", "C++ runs", "stored"):
        drawn.add_column(name, justify="right")
    drawn.add_column("identical")
    for row in rows:
        drawn.add_row(
            row["name"],
            f"{row['cold_s']:.1f} s",
            f"{row['warm_s']:.1f} s",
            f"{row['ratio']:.1f} ×",
            str(row["hits"]),
            str(row["misses"]),
            str(row["cxx_compiles"] + row["isa_probes"]),
            size(row["stored_bytes"]),
            "yes" if row["bit_identical"] else "no",
        )
    console(sys.stdout).print(drawn)


def size(count: int) -> str:
    """``5.2 MiB``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def console(file: TextIO) -> Console:
    """A console that prints what it is given; not folded where there is no terminal."""
    made = Console(file=file, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PLAIN_WIDTH
    return made
