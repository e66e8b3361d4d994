"""The log of real starts: silent by default when all is well, one line when not, and every event with its fields."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.functional.conftest import Run

pytestmark = pytest.mark.slow

START = """
    import logging

    class Everything(logging.Handler):
        def emit(self, record):
            records.append([record.name, record.levelname, getattr(record, "cachekit", None)])

    records = []
    if verbose:
        logging.basicConfig(level=logging.INFO, handlers=[Everything()])
    module = Product()
    with cachekit.attach(module, dir=store):
        call(module, 4, 8)
    tell(records=records)
"""


GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "logging.md").read_text(encoding="utf-8")


def test_starts_are_silent_and_trouble_is_one_line(process: Run, tmp_path: Path) -> None:
    """An engine that logs gets a line for each event, and only ours; one that does not is told of trouble only."""
    cold = process(START, verbose=True)
    warm = process(START, verbose=False)
    for blob in (tmp_path / "cachekit" / "store").rglob("blobs/sha256/*/*"):
        blob.write_bytes(b"damaged")
    damaged = process(START, verbose=False)

    records = [record for record in cold["records"] if not record[0].startswith("torch")]
    assert {name for name, _, _ in records} == {"cachekit.session"}
    assert [(name, level, facts["event"]) for name, level, facts in records] == [
        ("cachekit.session", "INFO", "started"),
        ("cachekit.session", "INFO", "saved"),
        ("cachekit.session", "INFO", "closed"),
    ]
    assert warm["stderr"] == ""
    (line,) = damaged["stderr"].splitlines()
    assert line.startswith("cachekit cannot use a part of the bundle, which is compiled again: ")
    for _, _, facts in records:
        (row,) = re.findall(rf"^\| `{facts['event']}` \|.*", GUIDE, re.MULTILINE)
        assert {name for name in facts if name != "event" and f"`{name}`" not in row + _common()} == set()


def _common() -> str:
    """Fields that the guide describes once for several events."""
    return GUIDE.partition("## Fields")[2]
