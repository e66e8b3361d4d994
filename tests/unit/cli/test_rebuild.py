"""`cachekit rebuild`."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from cachekit.identity.fingerprint import Fingerprint
from cachekit.manifest import Manifest
from tests.unit.cli.homes import Home, components

FID = Fingerprint.of(components()).id


def test_a_deleted_manifest_is_made_from_the_store(stocked: Home) -> None:
    """Fingerprints, artifacts and shapes are all there again."""
    answer = stocked.run("rebuild", "--json")

    assert answer.code == 0
    assert answer.json["manifest"] == str(stocked.manifest)
    assert [answer.json[name] for name in ("fingerprints", "artifacts", "shapes")] == [1, 4, 2]
    with Manifest(stocked.manifest) as manifest:
        assert [record.id for record in manifest.fingerprints()] == [FID]
        assert [record.shape.label for record in manifest.shapes()] == ["512x512x1", "1024x768x2,frames=17"]


def test_events_are_kept(stocked: Home) -> None:
    """The diary is the one thing that the store cannot give back."""
    with Manifest(stocked.manifest) as manifest:
        manifest.add_event("saved", FID)

    stocked.run("rebuild")

    with Manifest(stocked.manifest) as manifest:
        assert [event.kind for event in manifest.events()] == ["saved"]


def test_a_damaged_manifest_is_moved_aside(stocked: Home) -> None:
    """What was in it can still be studied; the new one is complete."""
    stocked.run("rebuild")
    rubbish = b"SQLite format 3\0" + b"\xff" * 8192
    stocked.manifest.write_bytes(rubbish)

    answer = stocked.run("rebuild", "--json")

    assert answer.code == 0
    assert answer.json["fingerprints"] == 1
    assert answer.json["moved_aside"] in answer.err
    (aside,) = [path for path in stocked.dir.iterdir() if ".damaged-" in path.name]
    assert str(aside) == answer.json["moved_aside"]
    assert aside.read_bytes() == rubbish
    assert stocked.run("ls").code == 0


def test_somebody_elses_database_is_left_alone(stocked: Home) -> None:
    """A file that is no manifest is not ours to move."""
    with closing(sqlite3.connect(stocked.manifest)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.commit()
    before = stocked.manifest.read_bytes()

    answer = stocked.run("rebuild")

    assert answer.code == 4
    assert "not a manifest" in answer.err
    assert stocked.manifest.read_bytes() == before


def test_a_newer_manifest_is_left_alone(stocked: Home) -> None:
    """A newer release made it and will want it back."""
    stocked.run("rebuild")
    with closing(sqlite3.connect(stocked.manifest)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()

    answer = stocked.run("rebuild", "--json")

    assert answer.code == 4
    assert answer.json["error"]["code"] == "newer-schema"
    assert [path.name for path in stocked.dir.iterdir() if "damaged" in path.name] == []


def test_a_bundle_that_cannot_be_trusted_is_left_out_and_named(stocked: Home) -> None:
    """The others are indexed; the status is 1."""
    other = stocked.publish(plan__device="cuda:1")
    (document,) = (stocked.dir / "store/local/profiles" / other.fingerprint_id / "generations").iterdir()
    document.write_bytes(b"{}")

    answer = stocked.run("rebuild", "--json")

    assert answer.code == 1
    assert answer.json["fingerprints"] == 1
    assert [problem["id"] for problem in answer.json["problems"]] == [other.fingerprint_id]
    assert document.read_bytes() == b"{}"
