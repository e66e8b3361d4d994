"""What a newer release wrote is read where that is allowed, and never changed, moved or dropped by this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachekit.bundle import canonical, signing, to_payload
from cachekit.errors import NewerSchemaError
from cachekit.store.base import Head
from cachekit.store.local import DirectoryStore
from tests.unit.store.world import FINGERPRINT, World, autotune, inductor

FID = FINGERPRINT.id


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world whose store is a folder."""
    return World(DirectoryStore(tmp_path / "store"))


def _commit(world: World, **changes: Any) -> Head:
    """Commit, signed by the trusted key, what a later release makes of the present bundle."""
    found, present = world.fetch(), world.store.read_head(FID)
    assert found is not None
    assert present is not None
    document = canonical.loads(to_payload(replace(found, generation=present.generation + 1))) | changes
    envelope = signing.sign(canonical.dumps(document), world.key)
    head = Head(present.generation + 1, world.store.write_generation(FID, document["generation"], envelope))
    world.store.move_head(FID, present, head)
    return head


def _files(world: World) -> dict[str, bytes]:
    root = world.store.root  # type: ignore[attr-defined]
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def _head_path(world: World) -> Path:
    root: Path = world.store.root  # type: ignore[attr-defined]
    return root / "local" / "profiles" / FID / "head.json"


def test_a_bundle_with_names_we_do_not_know_is_used_and_never_replaced(world: World) -> None:
    """Readable by us, it is read; a save on top would lose what we do not know, so it is refused and writes nothing."""
    world.save(inductor("a"))
    _commit(world, schema=2, min_reader=1, speed={"of": "light"})
    before = _files(world)

    found = world.fetch()
    assert found is not None
    assert [entry.key for entry in found.entries] == [inductor("a").key]
    with pytest.raises(NewerSchemaError, match="upgrade cachekit"):
        world.save(autotune("b"))

    assert _files(world) == before


def test_a_save_that_adds_nothing_to_a_newer_bundle_is_no_error(world: World) -> None:
    """A warm start of an older release on what a newer one keeps has nothing to complain of."""
    world.save(inductor("a"))
    _commit(world, schema=2, speed=1)

    assert world.save(inductor("a")).bytes_written == 0


def _more_in_the_head(world: World) -> None:
    path = _head_path(world)
    path.write_bytes(path.read_bytes().replace(b"{", b'{"expires":1,', 1))


def _damaged_head_over_a_newer_bundle(world: World) -> None:
    _commit(world, schema=2, min_reader=2)
    _head_path(world).write_bytes(b"{")


@pytest.mark.parametrize("change", [_more_in_the_head, _damaged_head_over_a_newer_bundle])
def test_a_writer_puts_nothing_of_a_newer_release_aside(
    world: World, change: Callable[[World], None]
) -> None:
    """A head that says more than we know, or a damaged one over a newer bundle: a save is refused, no file moves."""
    world.save(inductor("a"))
    change(world)
    before = _files(world)

    with pytest.raises(NewerSchemaError, match="upgrade cachekit"):
        world.save(autotune("b"))

    assert _files(world) == before


def test_a_head_that_says_more_is_named_with_its_file(world: World) -> None:
    """A reader is told which file it is, and what it says beyond what this release knows."""
    world.save(inductor("a"))
    _more_in_the_head(world)

    with pytest.raises(NewerSchemaError, match=r"head\.json: head says 'expires'"):
        world.fetch()
