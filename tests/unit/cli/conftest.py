"""Homes for the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.homes import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty home: not even the folder is there."""
    return Home(tmp_path / "home")


@pytest.fixture
def stocked(home: Home) -> Home:
    """A home with one bundle of four artifacts and two shapes."""
    home.publish()
    return home
