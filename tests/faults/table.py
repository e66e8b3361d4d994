"""The table of docs/reference/faults.md: what each failing call does, as the tests saw it.

A test gives what it saw; the table in the repository must say the same. ``FAULTS_WRITE=1`` writes it instead.
"""

from __future__ import annotations

import os
import sys
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
    """Assert that the document's section holds exactly this table, or write it there if the environment asks.

    Which calls Python makes differs between its versions: with another one than wrote the table, only rows that are
    here and there must agree.
    """
    begin, end = f"<!-- {section}: begin -->\n", f"<!-- {section}: end -->"
    written_by = f"Seen with Python {sys.version_info.major}.{sys.version_info.minor}.\n\n"
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(begin)
    present, _, after = rest.partition(end)
    if os.environ.get(WRITE):
        DOCUMENT.write_text(f"{before}{begin}{written_by}{table}{end}{after}")
        return
    here, there = _by_call(table), _by_call(present)
    if not present.startswith(written_by):
        common = here.keys() & there.keys()
        here, there = ({call: of[call] for call in common} for of in (here, there))
    assert here == there, (
        f"{DOCUMENT.name} does not say what was seen here; if that is right, write it anew: {WRITE}=1 "
        "python -m pytest -p no:xdist tests/faults"
    )


def contains(section: str, seen: Mapping[Row, Mapping[str, Iterable[str]]]) -> None:
    """Assert that the document's section has everything that was seen, which is only a part of it."""
    _, _, rest = DOCUMENT.read_text().partition(f"<!-- {section}: begin -->\n")
    there = _by_call(rest.partition(f"<!-- {section}: end -->")[0])
    for row, outcomes in seen.items():
        line = there.get("| " + " | ".join(row) + " ")
        if line is None:
            continue  # a call that this version of Python or torch makes and that of the table does not
        cells = dict(zip(ERRNOS, (cell.strip() for cell in line.split("|")[4:]), strict=False))
        for error, found in outcomes.items():
            assert set(found) <= set(cells[error].split(" or ")), (
                f"{row}, {error}: {found}, not {cells[error]}"
            )


def _by_call(table: str) -> dict[str, str]:
    """Lines by their first three cells."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return {"|".join(line.split("|")[:4]): line for line in lines}


def rows(told: Mapping[str, Any]) -> dict[Row, dict[str, set[str]]]:
    """What a script of this folder printed, as rows.

    What SQLite does with the manifest is its own affair and differs between its versions: one row for all of it.
    """
    found: dict[Row, dict[str, set[str]]] = {}
    for doing, call, place, seen in told["rows"]:
        row = found.setdefault((doing, "any" if place == "manifest" else call, place), {})
        for error, outcomes in seen.items():
            row.setdefault(error, set()).update(outcomes)
    for (_, _, place), row in found.items():
        if place == "manifest":
            every = set().union(*row.values())
            row.update(dict.fromkeys(ERRNOS, every))
    return found
