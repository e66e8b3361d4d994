"""`cachekit verify`: every kind of damage is found, named, and left as it is."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from cachekit.bundle import Artifact
from cachekit.identity.fingerprint import Fingerprint
from tests.unit.cli.homes import Home, artifacts, components, covering

FID = Fingerprint.of(components()).id


def problems(home: Home, *arguments: str) -> list[dict[str, Any]]:
    """What verify finds, twice the same, without changing a file."""
    before = home.files()
    first, second = (home.run("verify", *arguments, "--json") for _ in range(2))
    assert first == second
    assert first.code == (1 if first.json["problems"] else 0)
    assert home.files() == before
    found: list[dict[str, Any]] = first.json["problems"]
    return found


def profile(home: Home) -> Path:
    """The folder of the fingerprint."""
    return home.dir / "store" / "local" / "profiles" / FID


def test_a_whole_store_is_fine(stocked: Home) -> None:
    """Real artifacts of torch pass every check, and what was read is counted."""
    answer = stocked.run("verify", "--json")

    assert answer.code == 0
    assert (answer.json["bundles"], answer.json["artifacts"]) == (1, 4)
    assert answer.json["raw_bytes"] == sum(len(one.data) for one in artifacts())
    assert answer.json["problems"] == answer.json["notes"] == []
    assert "read 1 bundle, 4 artifacts, 301.9 KiB: 0 problems" in stocked.run("verify").out


def test_a_tampered_blob_is_found(stocked: Home) -> None:
    """One changed byte is enough; the artifact is named by kind and key."""
    entry = stocked.fetch(FID).entries[1]
    path = stocked.blob(entry.stored_digest)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))

    (problem,) = problems(stocked)

    assert problem["id"] == FID
    assert problem["where"] == f"{entry.kind} {entry.key}"
    assert problem["code"] == "corrupt"
    assert entry.key in stocked.run("verify").out


def test_every_damaged_artifact_is_named(stocked: Home) -> None:
    """One problem does not hide another: one blob is cut short, one is gone, two are whole."""
    cut, gone = stocked.fetch(FID).entries[:2]
    path = stocked.blob(cut.stored_digest)
    path.write_bytes(path.read_bytes()[:-1])
    stocked.blob(gone.stored_digest).unlink()

    found = {problem["where"]: problem["code"] for problem in problems(stocked)}

    assert found == {f"{cut.kind} {cut.key}": "corrupt", f"{gone.kind} {gone.key}": "not-found"}


def test_a_blob_that_is_a_link_is_refused(stocked: Home) -> None:
    """Links are never followed, however right the bytes behind them are."""
    path = stocked.blob(stocked.fetch(FID).entries[0].stored_digest)
    elsewhere = path.rename(stocked.dir / "elsewhere")
    path.symlink_to(elsewhere)

    assert [problem["code"] for problem in problems(stocked)] == ["type", "store"]


def test_a_document_changed_after_signing_is_found(stocked: Home) -> None:
    """A signature over other bytes is untrusted, even under a digest that fits."""
    (document,) = (profile(stocked) / "generations").iterdir()
    envelope = json.loads(document.read_bytes())
    payload = envelope["payload"]
    envelope["payload"] = payload[:200] + ("A" if payload[200] != "A" else "B") + payload[201:]
    digest = stocked.store.write_generation(FID, 1, json.dumps(envelope).encode())
    (profile(stocked) / "head.json").write_text(json.dumps({"digest": digest, "generation": 1}))

    (problem,) = problems(stocked)

    assert (problem["where"], problem["code"]) == ("bundle", "untrusted")
    assert "changed after signing" in problem["message"]


def test_a_bundle_by_another_key_is_found(stocked: Home, tmp_path: Path) -> None:
    """A folder copied from another machine is signed by that machine's key."""
    other = Home(tmp_path / "other")
    other.publish(plan__device="cuda:1")
    (stocked.dir / "keys").rename(tmp_path / "keys")
    (other.dir / "keys").rename(stocked.dir / "keys")

    (problem,) = problems(stocked)

    assert problem["code"] == "untrusted"


def test_a_broken_head_is_found(stocked: Home) -> None:
    """The head is the only way to a bundle; broken is not absent."""
    (profile(stocked) / "head.json").write_text("{")

    (problem,) = problems(stocked)

    assert (problem["where"], problem["code"]) == ("bundle", "corrupt")


def test_a_document_that_the_head_names_and_is_gone_is_found(stocked: Home) -> None:
    """A head without its document is damage."""
    (document,) = (profile(stocked) / "generations").iterdir()
    document.unlink()

    (problem,) = problems(stocked)

    assert problem["code"] == "corrupt"
    assert "missing" in problem["message"]


def test_an_older_document_under_a_newer_head_is_found(stocked: Home) -> None:
    """A document says which generation it is, so it cannot be passed off as another."""
    (document,) = (profile(stocked) / "generations").iterdir()
    digest = stocked.store.write_generation(FID, 7, document.read_bytes())
    (profile(stocked) / "head.json").write_text(json.dumps({"digest": digest, "generation": 7}))

    (problem,) = problems(stocked)

    assert problem["code"] == "untrusted"


def test_components_of_another_fingerprint_are_found(stocked: Home) -> None:
    """`explain` reads the components, so they must be those of the id."""
    other = Fingerprint.of(components(plan__device="cuda:1"))
    (profile(stocked) / "profile.json").write_bytes(other.canonical)

    (problem,) = problems(stocked)

    assert (problem["where"], problem["code"]) == ("profile.json", "corrupt")


def test_a_missing_contribution_is_found(stocked: Home) -> None:
    """Each artifact names the statement it came with."""
    (statement,) = (stocked.dir / "store" / "local" / "contributions").iterdir()
    statement.unlink()

    (problem,) = problems(stocked)

    assert problem["where"] == f"contribution {statement.name[:12]}"


def test_a_pickle_that_would_run_a_command_is_found(home: Home) -> None:
    """A trusted signature does not make a pickle that imports `os` an artifact of torch."""

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("true",)

    good = artifacts()
    bad = tuple(
        Artifact(one.kind, one.key, pickle.dumps(Attack()), one.guards) if one.kind == "inductor" else one
        for one in good
    )
    home.publish(bad, coverage=covering(()))

    found = problems(home)

    assert {problem["where"] for problem in found} == {
        f"inductor {one.key}" for one in bad if one.kind == "inductor"
    }
    assert all("system" in problem["message"] for problem in found)


def test_guards_that_are_not_those_of_the_bytes_are_found(home: Home) -> None:
    """The bundle's guards decide what is installed, so they must be what torch will read."""
    one = next(one for one in artifacts() if one.kind == "inductor")
    home.publish((Artifact(one.kind, one.key, one.data, guards="s0 > 2"),), coverage=covering(()))

    (problem,) = problems(home)

    assert "guards" in problem["message"]


def test_a_profile_that_was_never_committed_is_only_noted(home: Home) -> None:
    """A writer that died before its first commit broke nothing."""
    fingerprint = Fingerprint.of(components())
    home.store.write_profile(fingerprint.id, fingerprint.canonical)

    answer = home.run("verify", "--json")

    assert answer.code == 0
    assert [note["where"] for note in answer.json["notes"]] == ["head"]


def test_one_bundle_can_be_verified_alone(stocked: Home) -> None:
    """With an id nothing else is read."""
    other = stocked.publish(plan__device="cuda:1")
    stocked.blob(stocked.fetch(FID).entries[0].stored_digest).unlink()
    (profile(stocked) / "profile.json").unlink()

    assert len(problems(stocked, FID[:8])) == 2
    # The blob is shared by both, the components are not.
    assert len(problems(stocked, other.fingerprint_id)) == 1


def test_an_unknown_id_is_status_3(stocked: Home) -> None:
    """Nothing to verify under that name is no clean bill."""
    assert stocked.run("verify", "zz").code == 3


@pytest.mark.parametrize("torch", ["2.9", "2.11", "2.12", "2.14", "2.15"])
def test_artifacts_of_every_torch_pass(home: Home, torch: str) -> None:
    """The checks know what each supported release writes."""
    for kind in ("double", "dynamic"):
        home.publish(
            artifacts(f"torch-{torch}-{kind}"), coverage=covering(()), toolchain__torch__version=torch + kind
        )

    assert problems(home) == []
