from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cachekit.manifest import Manifest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a manifest may be made."""
    return tmp_path / "manifest.sqlite3"


@pytest.fixture
def manifest(path: Path) -> Iterator[Manifest]:
    """A fresh manifest."""
    with Manifest(path) as opened:
        yield opened
