"""`cachekit verify --repair`: every file kind, damaged in every way, is found, mended, and lost nowhere."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cachekit.bundle import Artifact, Bundle, Tombstone, signing
from cachekit.bundle.document import to_payload
from cachekit.cli import checks
from cachekit.identity.fingerprint import Fingerprint
from cachekit.manifest import Manifest
from cachekit.store import keys, quarantine
from cachekit.store.base import Head
from cachekit.store.fetch import read_artifacts
from cachekit.store.seen import Seen
from tests.unit.cli.homes import Home, components
from tests.unit.store.damage import DAMAGES, as_user, open_the_way_to
from tests.unit.store.world import covering, key_of, noise

FID = Fingerprint.of(components()).id


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody saves meanwhile, so nothing is waited for."""
    monkeypatch.setattr(checks, "PATIENCE_S", 0.0)


@pytest.fixture
def lived_in(home: Home) -> Home:
    """A home with two generations, a memory of the newest, and a manifest that agrees."""
    for name in "ab":
        bundle = save(home, name)
    assert bundle.generation == 2
    remember(home)
    with Manifest(home.manifest) as manifest:
        manifest.index(bundle)
    return home


def save(home: Home, name: str, **changes: str) -> Bundle:
    """Publish an artifact in a blob and a small one beside it, with a unit and a shape of their own."""
    made = (artifact(name, 10_000), artifact(f"{name}, small", 10))
    return home.publish(made, coverage=covering(f"{64 * (1 + ord(name))}x64x1", *made), **changes)


def artifact(name: str, size: int) -> Artifact:
    """What torch could have made, without guards."""
    pickled = pickle.dumps({"guards_expr": "", "inside": noise(name, size)})
    return Artifact("inductor", key_of("inductor", name), pickled)


def contents(home: Home) -> dict[str, bytes]:
    """Every file, without what SQLite keeps beside its own while it reads."""
    return {name: data for name, (_, data) in home.files().items() if not name.endswith(("-shm", "-wal"))}


def seen(home: Home) -> Seen:
    """The memory of a home."""
    return Seen(home.dir / "seen", "local")


def remember(home: Home) -> Head:
    """Remember the committed head, as a session does."""
    head = home.store.read_head(FID)
    assert head is not None
    seen(home).note(home.store, FID, head)
    return head


def profile(home: Home) -> Path:
    """The folder of the fingerprint."""
    return home.dir / "store/local/profiles" / FID


def document(home: Home, generation: int) -> Path:
    """The file of a generation."""
    (head,) = [head for head in home.store.generations(FID) if head.generation == generation]
    return profile(home) / "generations" / head.filename


FILES: dict[str, Callable[[Home], Path]] = {
    "head": lambda home: profile(home) / "head.json",
    "components": lambda home: profile(home) / "profile.json",
    "document": lambda home: document(home, 2),
    "older document": lambda home: document(home, 1),
    "blob": lambda home: home.blob(
        next(e for e in home.fetch(FID).entries if e.inline is None).stored_digest
    ),
    "contribution": lambda home: (
        home.dir / "store/local/contributions" / home.fetch(FID).entries[0].contribution
    ),
    "signing key": lambda home: home.dir / "keys/signing.pem",
    "trusted key": lambda home: next((home.dir / "keys/trusted").iterdir()),
    "memory": lambda home: seen(home).path(FID),
    "manifest": lambda home: home.manifest,
}

# Not wrong: absence that the next save ends, and bytes that say nothing.
FINE = {
    ("older document", "missing"),
    ("signing key", "missing"),
    ("signing key", "truncated"),
    ("signing key", "grown"),
    ("trusted key", "truncated"),
    ("trusted key", "grown"),
    ("memory", "missing"),
    ("manifest", "missing"),
    ("manifest", "truncated"),
    ("manifest", "grown"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", FILES)
def test_every_damage_of_every_file_is_found_and_mended(lived_in: Home, kind: str, damage: str) -> None:
    """Verify names it and changes nothing; repair leaves a home in which nothing is wrong and a save works."""
    path = FILES[kind](lived_in)
    DAMAGES[damage](path)
    before = contents(lived_in)
    there = path.lstat().st_ino if damage != "missing" else 0

    found = lived_in.run("verify", "--json")
    assert contents(lived_in) == before
    # A flipped bit in a key is another key, in an SQLite file it may hit what nobody uses.
    if damage != "flipped" or kind not in ("signing key", "trusted key", "manifest", "memory"):
        assert found.code == (0 if (kind, damage) in FINE else 1), found.out
    repaired = lived_in.run("verify", "--repair", "--json")

    assert repaired.code == 0, repaired.out
    assert repaired.json["problems"] == []
    assert repaired.json["not_repaired"] == []
    assert bool(repaired.json["repaired"]) == bool(found.json["problems"] or found.json["notes"])
    # Whatever was in the file's place is kept with the reason, unless it was only written over with what is right.
    if found.code and damage not in ("missing", "flipped") and (kind, damage) != ("manifest", "empty"):
        assert there in inodes(lived_in)
    assert lived_in.run("verify").code == 0
    saved = save(lived_in, "c")
    assert len(read_artifacts(lived_in.store, saved, lambda entry: True).problems) == 0


def inodes(home: Home) -> set[int]:
    """What is in quarantine with its reason, and manifests that were set aside."""
    folders = (home.dir / "store/local/quarantine", home.dir / "keys/quarantine")
    kept = [one for folder in folders for one in quarantine.kept(folder)]
    assert all(one.why for one in kept)
    aside = home.dir.glob("manifest.sqlite3.damaged-*")
    return {path.lstat().st_ino for path in (*(one.path for one in kept), *aside)}


def test_a_lost_artifact_takes_with_it_only_what_needs_it(lived_in: Home) -> None:
    """Its unit and shape go; the other shape stays covered, in a new generation."""
    lost = next(entry for entry in lived_in.fetch(FID).entries if entry.inline is None)
    lived_in.blob(lost.stored_digest).unlink()

    answer = lived_in.run("verify", "--repair", "--json")

    bundle = lived_in.fetch(FID)
    assert bundle.generation == 3
    assert lost.identity not in {entry.identity for entry in bundle.entries}
    told = " ".join(done["message"] for done in answer.json["repaired"])
    assert lost.key in told
    assert "1 unit" in told
    assert bundle.coverage.units


def test_a_store_that_was_turned_back_is_found_and_accepted(lived_in: Home) -> None:
    """A restored backup: verify names both generations and the key, repair goes on above the newest seen."""
    heads = lived_in.store.generations(FID)
    (profile(lived_in) / "head.json").write_bytes(heads[0].to_bytes())
    document(lived_in, 2).unlink()

    answer = lived_in.run("verify", "--json")
    assert answer.code == 1
    (problem,) = [one for one in answer.json["problems"] if one["where"] == "bundle"]
    assert problem["code"] == "rollback"
    assert "generation 2 was seen" in problem["message"]
    assert lived_in.run("show", FID).code == 5
    assert lived_in.run("ls").code == 1

    assert lived_in.run("verify", "--repair").code == 0
    assert lived_in.fetch(FID).generation == 3
    assert lived_in.run("ls").code == 0


def test_a_profile_of_which_no_document_is_whole_is_emptied(lived_in: Home) -> None:
    """Generations go on, and the next save fills it."""
    for generation in (1, 2):
        document(lived_in, generation).write_bytes(b"{")

    assert lived_in.run("verify", "--repair").code == 0
    bundle = lived_in.fetch(FID)
    assert (bundle.generation, bundle.entries) == (3, ())


def test_what_a_newer_release_wrote_is_left_alone(lived_in: Home) -> None:
    """Not repaired, and said so; not a byte of it changes."""
    bundle = lived_in.fetch(FID)
    text = to_payload(replace(bundle, generation=3)).replace(b'"min_reader":1', b'"min_reader":9')
    key = keys.load_or_create(lived_in.dir / "keys")
    head = lived_in.store.read_head(FID)
    assert head is not None
    envelope = signing.sign(text.replace(b'"schema":1', b'"schema":9'), key)
    new = Head(3, lived_in.store.write_generation(FID, 3, envelope))
    lived_in.store.move_head(FID, head, new)
    before = {name: data for name, (_, data) in lived_in.files().items() if "profiles" in name}

    answer = lived_in.run("verify", "--repair", "--json")

    assert answer.code == 1
    assert [one["code"] for one in answer.json["not_repaired"]] == ["newer-schema"]
    assert {name: data for name, (_, data) in lived_in.files().items() if "profiles" in name} == before


def test_bundles_of_lost_keys_are_put_aside(lived_in: Home) -> None:
    """Nobody can tell any more who signed them: they go to quarantine, whole, and the next save begins above them."""
    path = FILES["trusted key"](lived_in)
    (lived_in.dir / "keys/signing.pem").unlink()
    path.unlink()
    documents = {one.name: one.read_bytes() for one in profile(lived_in).glob("generations/*")}
    assert "verify --repair" in lived_in.run("verify").out

    answer = lived_in.run("verify", "--repair", "--json")

    assert answer.code == 0, answer.out
    assert answer.json["not_repaired"] == []
    kept = quarantine.kept(lived_in.dir / "store/local/quarantine")
    assert {one.path.name.split("-", 2)[2]: one.path.read_bytes() for one in kept} == documents
    assert lived_in.fetch(FID).generation == 3
    assert lived_in.run("verify").code == 0
    assert save(lived_in, "c").generation == 4


def test_a_foreign_head_over_own_documents_is_mended(lived_in: Home) -> None:
    """The newest document of our own counts again, and the others' stay where they are."""
    theirs = Home(lived_in.dir.parent / "theirs")
    save(theirs, "z")
    shutil.copytree(theirs.dir / "store", lived_in.dir / "store", dirs_exist_ok=True)
    assert lived_in.run("verify").code == 1
    documents = lived_in.store.generations(FID)

    answer = lived_in.run("verify", "--repair", "--json")

    assert answer.code == 0, answer.out
    bundle = lived_in.fetch(FID)
    assert bundle.generation == 3
    assert {entry.key for entry in bundle.entries} >= {artifact("a", 10_000).key, artifact("b", 10_000).key}
    assert set(documents) < set(lived_in.store.generations(FID))


def test_a_profile_under_a_name_that_is_not_its_own_is_put_aside(lived_in: Home) -> None:
    """A copied folder that can never be read as what its name says goes to quarantine as a whole."""
    shutil.copytree(profile(lived_in), profile(lived_in).with_name(f"{FID}x"))
    assert lived_in.run("verify").code == 1

    answer = lived_in.run("verify", "--repair", "--json")

    assert answer.code == 0, answer.out
    assert lived_in.run("rebuild").code == 0
    assert lived_in.store.profiles() == [FID]


def test_the_manifest_is_not_blamed_for_a_bundle_that_nobody_trusts(lived_in: Home) -> None:
    """It cannot have what cannot be read."""
    for path in (FILES["trusted key"](lived_in), lived_in.dir / "keys/signing.pem"):
        path.unlink()
    lived_in.run("rebuild")

    codes = [one["code"] for one in lived_in.run("verify", "--json").json["problems"]]

    assert codes == ["untrusted"]


@pytest.mark.parametrize(
    ("path", "mode", "wanted"),
    [
        ("store/local", 0o777, 0o700),
        ("store", 0o775, 0o700),
        ("store/local", 0o755, 0o700),
        ("keys", 0o777, 0o700),
        ("keys/trusted", 0o722, 0o700),
        ("seen", 0o757, 0o700),
        ("keys/signing.pem", 0o666, 0o600),
        ("keys/signing.pem", 0o620, 0o600),
        ("keys/signing.pem", 0o644, 0o600),
        ("store/local/profiles", 0o000, 0o700),
    ],
)
def test_modes_are_tightened(lived_in: Home, path: str, mode: int, wanted: int) -> None:
    """Too many rights, or too few: told without ``--repair``, put right with it."""
    (lived_in.dir / path).chmod(mode)

    told = lived_in.run("verify")
    assert path in told.out + told.err
    answer = lived_in.run("verify", "--repair", "--json")

    assert answer.code == 0, answer.out
    assert stat.S_IMODE((lived_in.dir / path).stat().st_mode) == wanted


def test_a_trusted_key_that_others_could_write_is_not_blessed(lived_in: Home) -> None:
    """Tightening its mode would trust whatever they wrote: it goes aside. One's own is made again."""
    theirs = keys.trust(lived_in.dir / "keys", signing.generate().public)
    own = FILES["trusted key"](lived_in)
    for path in (theirs, own):
        path.chmod(0o666)

    assert lived_in.run("verify").code == 1
    assert lived_in.run("verify", "--repair").code == 0

    assert not theirs.exists()
    assert set(keys.trusted(lived_in.dir / "keys")) == {keys.load_or_create(lived_in.dir / "keys").keyid}


def test_left_overs_and_strange_files_are_told(lived_in: Home) -> None:
    """What a killed writer left is put aside; what means nothing here is a note and stays."""
    left = profile(lived_in) / "generations/.tmp-1-0123456789abcdef"
    left.write_bytes(b"half")
    strange = [
        lived_in.dir / "store/local" / name
        for name in ("notes.txt", "profiles/notes", "blobs/sha256/ab", "contributions/x", f"profiles/{FID}/x")
    ]
    for path in strange:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(b"mine")

    answer = lived_in.run("verify", "--json")
    told = {note["where"] for note in answer.json["notes"]}
    for path in [left, *strange]:
        if path.is_file():
            assert str(path.relative_to(lived_in.dir)) in told | {
                one["where"] for one in answer.json["problems"]
            }
    for verb in (("coverage",), ("explain", FID), ("ls",)):
        assert lived_in.run(*verb).code in (0, 1), verb
    lived_in.run("verify", "--repair")

    assert not left.exists()
    assert strange[0].read_bytes() == b"mine"


def test_the_quarantine_is_told(lived_in: Home) -> None:
    """How many, how large, where, and why."""
    path = FILES["blob"](lived_in)
    path.write_bytes(b"bad")
    lived_in.run("verify", "--repair")

    told = lived_in.run("verify")
    answer = lived_in.run("verify", "--json").json["quarantine"]

    assert f"quarantine: 1 file (3 B) in {lived_in.dir}" in told.out
    assert (answer["files"], answer["bytes"]) == (1, 3)
    assert path.name in answer["kept"][0]["why"]


def test_a_manifest_that_disagrees_is_made_anew(lived_in: Home) -> None:
    """It lags behind, or knows what is gone."""
    save(lived_in, "c", plan__device="cuda:1")
    answer = lived_in.run("verify", "--json")
    assert [one["code"] for one in answer.json["problems"]] == ["manifest"]

    assert lived_in.run("verify", "--repair").code == 0
    with Manifest(lived_in.manifest) as manifest:
        assert len(manifest.bundles()) == 2


def test_a_manifest_of_a_newer_release_is_left_alone(lived_in: Home) -> None:
    """A note, and not a byte changed."""
    import sqlite3

    connection = sqlite3.connect(lived_in.manifest)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    (profile(lived_in) / "profile.json").unlink()
    before = lived_in.manifest.read_bytes()

    answer = lived_in.run("verify", "--repair", "--json")

    assert lived_in.manifest.read_bytes() == before
    assert [note["where"] for note in answer.json["notes"]] == ["manifest.sqlite3"]


def test_tombstones_survive_a_repair(lived_in: Home) -> None:
    """What was withdrawn stays so when an older document has to be taken."""
    head = lived_in.store.read_head(FID)
    assert head is not None
    bundle = lived_in.fetch(FID)
    gone = bundle.entries[0]
    stones = (Tombstone(gone.raw_digest, "wrong numbers"),)
    new = replace(bundle, tombstones=stones, generation=3, parent=head.digest)
    envelope = signing.sign(to_payload(new), keys.load_or_create(lived_in.dir / "keys"))
    third = Head(3, lived_in.store.write_generation(FID, 3, envelope))
    lived_in.store.move_head(FID, head, third)
    seen(lived_in).note(lived_in.store, FID, third, stones)
    document(lived_in, 3).unlink()

    assert lived_in.run("verify", "--repair").code == 0
    repaired = lived_in.fetch(FID)
    assert repaired.generation == 4
    assert gone.raw_digest not in {entry.raw_digest for entry in repaired.entries}


def test_one_bundle_can_be_repaired_alone(lived_in: Home) -> None:
    """With an id nothing else is touched."""
    other = save(lived_in, "c", plan__device="cuda:1").fingerprint_id
    for fid in (FID, other):
        (profile(lived_in).parent / fid / "profile.json").unlink()

    assert lived_in.run("verify", "--repair", other[:12]).code == 0
    assert not (profile(lived_in) / "profile.json").exists()


def test_repairing_nothing_changes_nothing(lived_in: Home) -> None:
    """On a whole home it is the same as looking."""
    before = contents(lived_in)

    answer = lived_in.run("verify", "--repair", "--json")

    assert answer.code == 0
    assert answer.json["repaired"] == []
    assert contents(lived_in) == before


def test_repairing_an_absent_home_makes_nothing(home: Home) -> None:
    """Not even the folder."""
    assert home.run("verify", "--repair").code == 0
    assert not home.dir.exists()


def test_what_cannot_be_read_is_told_and_not_thrown_away(lived_in: Home) -> None:
    """Permission denied is no damage: an ordinary user's repair says so, and the artifact stays in the bundle."""
    folder = lived_in.dir / "store/local/blobs/sha256"
    entry = next(entry for entry in lived_in.fetch(FID).entries if entry.inline is None)
    shard = folder / entry.stored_digest[:2]
    if os.geteuid() == 0:
        from tests.unit.store.damage import NOBODY

        for path in [lived_in.dir, *lived_in.dir.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        os.chown(shard, 0, 0)
        open_the_way_to(lived_in.dir)
    else:
        pytest.skip(
            "an ordinary user's own folder is put right by repairing it: only root can take it from him"
        )
    script = """
        import sys
        from cachekit.cli import app
        from typer.testing import CliRunner
        from cachekit.cli import checks, mending, surroundings
        from cachekit.store import repair, publish, statement
        from cachekit.manifest import Manifest, engine
        import cachekit.manifest.manifest, alembic.command, sqlalchemy.dialects.sqlite
        from cachekit.bundle import signing
        from rich.progress import Progress
        CliRunner().invoke(app, ["verify", "--repair", "--dir", sys.argv[2]])
        become_ordinary()
        checks.PATIENCE_S = 0.0
        done = CliRunner().invoke(app, ["verify", "--repair", "--json", "--dir", sys.argv[1]])
        print(done.stdout or repr(done.exception))
    """
    shard.chmod(0o700)

    warm_up = shutil.copytree(lived_in.dir, lived_in.dir.parent / "other")
    answer = json.loads(as_user(script, str(lived_in.dir), str(warm_up)))

    assert [one["code"] for one in answer["problems"]] == ["store"] * len(answer["problems"])
    assert answer["problems"]
    shard.chmod(0o755)
    assert lived_in.fetch(FID).generation == 2
