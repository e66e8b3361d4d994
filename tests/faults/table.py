"""The table of docs/reference/faults.md: what each failing call does, as the tests saw it.

A test gives what it saw; the table in the repository must say the same. ``FAULTS_WRITE=1`` writes it instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.faults.shim import ERRNOS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md"
WRITE = "FAULTS_WRITE"

Row = tuple[str, str, str]
"""What was being done, the call, what it acted on."""


def rendered(seen: Mapping[Row, Mapping[str, Iterable[str]]]) -> str:
    """The rows as Markdown, in a fixed order; errnos that always did the same share a column's words."""
    lines = [
        "| while | call | on | " + " | ".join(ERRNOS) + " |",
        "|---|---|---|" + "---|" * len(ERRNOS),
    ]
    for row in sorted(seen):
        cells = [" or ".join(sorted(set(seen[row].get(error, ())))) or "–" for error in ERRNOS]
        lines.append("| " + " | ".join((*row, *cells)) + " |")
    return "\n".join(lines) + "\n"


def compare(section: str, table: str) -> None:
    """Assert that the document's section holds exactly this table, or write it there if the environment asks."""
    begin, end = f"<!-- {section}: begin -->\n", f"<!-- {section}: end -->"
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(begin)
    present, _, after = rest.partition(end)
    if os.environ.get(WRITE):
        DOCUMENT.write_text(f"{before}{begin}{table}{end}{after}")
        return
    missing = sorted(set(table.splitlines()) - set(present.splitlines()))
    stale = sorted(set(present.splitlines()) - set(table.splitlines()))
    assert (missing, stale) == ([], []), (
        f"{DOCUMENT.name} does not say what was seen here; if that is right, write it anew: {WRITE}=1 "
        "python -m pytest tests/faults"
    )


def rows(told: Mapping[str, Any]) -> dict[Row, Mapping[str, Iterable[str]]]:
    """What a script of this folder printed, as rows."""
    return {(doing, call, place): seen for doing, call, place, seen in told["rows"]}
