from __future__ import annotations

from pathlib import Path

import pytest

from cachekit.bundle.signing import SigningKey, generate
from cachekit.store.local import DirectoryStore
from tests.unit.store.world import World


@pytest.fixture(scope="session")
def signing_key() -> SigningKey:
    """One key for all tests that do not care which."""
    return generate()


@pytest.fixture
def world(tmp_path: Path, signing_key: SigningKey) -> World:
    """An empty directory store with a key."""
    return World(DirectoryStore(tmp_path / "store"), signing_key)
