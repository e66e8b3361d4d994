"""`cachekit explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachekit.bundle import Artifact, Coverage, requires
from cachekit.identity.fingerprint import Fingerprint
from tests.unit.cli.homes import Home, artifacts, components

FID = Fingerprint.of(components()).id


@pytest.fixture
def missed(tmp_path: Path) -> Path:
    """A file with the fingerprint of another torch and ISA, of which nothing is stored."""
    changed = components(toolchain__torch__version="2.14.0", toolchain__cpu__vector_isa="avx2")
    path = tmp_path / "missed.json"
    path.write_text(Fingerprint.of(changed).to_json())
    return path


def test_two_fingerprints_differ_in_named_components(stocked: Home) -> None:
    """Each component that differs, with both values; status 1."""
    other = stocked.publish(plan__device="cuda:1", plan__dynamic=True)

    answer = stocked.run("explain", FID[:8], other.fingerprint_id[:8], "--json")

    assert answer.code == 1
    assert answer.json["verdict"] == "different"
    assert answer.json["differences"] == [
        {"component": "plan.device", "mine": "cuda:0", "theirs": "cuda:1"},
        {"component": "plan.dynamic", "mine": False, "theirs": True},
    ]


def test_a_fingerprint_equals_itself(stocked: Home) -> None:
    """Nothing to explain is status 0."""
    answer = stocked.run("explain", FID, FID)

    assert answer.code == 0
    assert "the same fingerprint" in answer.out


def test_a_miss_is_explained_against_the_nearest(stocked: Home, missed: Path) -> None:
    """The same model on another toolchain is nearer than another model; the differing components are named."""
    stocked.publish(pipeline__family="Flux", pipeline__denoisers={}, toolchain__torch__version="2.14.0")

    answer = stocked.run("explain", str(missed), "--json")

    assert answer.code == 1
    assert answer.json["verdict"] == "miss"
    assert answer.json["theirs"]["id"] == FID
    assert [one["component"] for one in answer.json["differences"]] == [
        "toolchain.cpu.vector_isa",
        "toolchain.torch.version",
    ]
    told = stocked.run("explain", str(missed)).out
    assert "is a miss" in told
    assert '"avx2"' in told


def test_a_stored_fingerprint_has_nothing_to_explain(stocked: Home) -> None:
    """It is compared with the nearest other one all the same, for whoever wonders why it was new."""
    other = stocked.publish(toolchain__gpu__ordinal=1)

    answer = stocked.run("explain", FID, "--json")

    assert answer.code == 0
    assert answer.json["verdict"] == "stored"
    assert answer.json["theirs"]["id"] == other.fingerprint_id
    assert [one["component"] for one in answer.json["differences"]] == ["toolchain.gpu.ordinal"]


def test_a_miss_in_an_empty_store_is_said(home: Home, missed: Path) -> None:
    """There is no nearest one; that is the explanation."""
    answer = home.run("explain", str(missed))

    assert answer.code == 1
    assert "no other fingerprint is stored" in answer.out


def test_a_component_that_one_side_lacks_is_not_null(stocked: Home, tmp_path: Path) -> None:
    """Absent and null are two things: the side that lacks a component lacks the name."""
    changed = components()
    del changed["toolchain"]["cpu"]["threads"]
    path = tmp_path / "other.json"
    path.write_text(Fingerprint.of(changed).to_json())

    answer = stocked.run("explain", FID, str(path), "--json")

    assert answer.json["differences"] == [{"component": "toolchain.cpu.threads", "mine": 8}]
    assert "(absent)" in stocked.run("explain", FID, str(path)).out


def test_what_show_prints_can_be_explained(stocked: Home, tmp_path: Path) -> None:
    """The JSON of `show` goes in as a file, and through standard input."""
    shown = stocked.run("show", FID, "--json").out
    path = tmp_path / "shown.json"
    path.write_text(shown)

    assert stocked.run("explain", str(path), FID, "--json").json["verdict"] == "equal"
    assert stocked.run("explain", "-", FID, "--json", stdin=shown.encode()).json["verdict"] == "equal"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "x"}', '{"a": 1, "a": 2}'])
def test_a_file_that_is_no_fingerprint_is_status_2(text: str, home: Home, tmp_path: Path) -> None:
    """The file is named, and told apart from a store that cannot be read."""
    path = tmp_path / "other.json"
    path.write_text(text)

    answer = home.run("explain", str(path))

    assert answer.code == 2
    assert str(path) in answer.err


def test_a_fingerprint_of_a_newer_release_is_status_4(home: Home, tmp_path: Path) -> None:
    """It is not called damaged."""
    path = tmp_path / "newer.json"
    path.write_text(json.dumps({**components(), "schema": 99}))

    answer = home.run("explain", str(path), "--json")

    assert answer.code == 4
    assert answer.json["error"]["code"] == "newer-schema"


def test_neither_an_id_nor_a_file_is_status_3(stocked: Home) -> None:
    """Whatever was meant, it is not there."""
    assert stocked.run("explain", "nowhere.json").code == 3


def test_the_host_is_compared_with_what_artifacts_require(home: Home) -> None:
    """An artifact for another vector unit is named by the requirement, with what this machine has."""
    pytest.importorskip("torch", reason="what this machine has is told by torch")
    one = next(one for one in artifacts() if one.kind == "inductor")
    home.publish(
        (Artifact(one.kind, one.key, one.data, one.guards, requires({"vector_isa": "vsx9"})),),
        coverage=Coverage(),
    )

    answer = home.run("explain", FID, "--host", "--json")

    (difference,) = answer.json["host"]
    assert answer.code == 1
    assert (difference["name"], difference["required"], difference["artifacts"]) == ("vector_isa", "vsx9", 1)
    assert difference["here"] not in (None, "vsx9")


def test_a_host_that_meets_everything_is_said(stocked: Home) -> None:
    """No requirement, no difference."""
    pytest.importorskip("torch", reason="what this machine has is told by torch")

    answer = stocked.run("explain", FID, "--host")

    assert answer.code == 0
    assert "this machine meets" in answer.out


def test_damaged_components_of_another_are_passed_over(stocked: Home) -> None:
    """The nearest is looked for among those that can be read, and the others are named."""
    broken = stocked.publish(plan__device="cuda:1").fingerprint_id
    (stocked.dir / "store/local/profiles" / broken / "profile.json").write_bytes(b"{")

    answer = stocked.run("explain", Fingerprint.of(components()).id)

    assert answer.code == 0
    assert broken in answer.err
