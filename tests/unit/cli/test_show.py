"""`cachekit show` and how ids are understood."""

from __future__ import annotations

import struct

from cachekit.identity.fingerprint import Fingerprint
from cachekit.store.base import Head
from tests.unit.cli.homes import Home, artifacts, components, covering

FID = Fingerprint.of(components()).id


def test_everything_that_is_known_is_in_the_document(stocked: Home) -> None:
    """Components, artifacts, kinds, producer, facts and generations."""
    answer = stocked.run("show", FID, "--json")

    found = answer.json
    assert answer.code == 0
    assert found["components"] == {**components(), "schema": 1}
    assert {one["key"]: one["raw_bytes"] for one in found["artifacts"]} == {
        one.key: len(one.data) for one in artifacts()
    }
    assert {one["kind"]: one["artifacts"] for one in found["kinds"]} == {"aot_autograd": 2, "inductor": 2}
    assert [one["trusted"] for one in found["producers"]] == [True]
    assert found["facts"] == {"cachekit": "0.1.0", "torch": "2.13.0"}
    assert found["cold_s"] == {"first_call_s": 12.5}
    assert [(one["generation"], one["committed"]) for one in found["generations"]] == [(1, True)]


def test_the_beginning_of_an_id_is_enough(stocked: Home) -> None:
    """Nobody types 64 digits."""
    answer = stocked.run("show", FID[:6])

    assert answer.code == 0
    assert FID in answer.out
    assert "toolchain.cpu.vector_isa" in answer.out


def test_an_unknown_id_is_status_3(stocked: Home) -> None:
    """What is not there is told apart from what cannot be read."""
    answer = stocked.run("show", "zz", "--json")

    assert answer.code == 3
    assert answer.json["error"]["code"] == "not-found"
    assert str(stocked.dir) in answer.err


def test_an_ambiguous_beginning_names_the_candidates(home: Home) -> None:
    """Two ids that start alike are both named, and neither is chosen."""
    ids: dict[str, str] = {}
    for threads in range(17):  # 17 ids have 16 first digits
        bundle = home.publish(artifacts()[:2], coverage=covering(()), toolchain__cpu__threads=threads)
        other = ids.setdefault(bundle.fingerprint_id[0], bundle.fingerprint_id)
        if other != bundle.fingerprint_id:
            break

    answer = home.run("show", other[0])

    assert answer.code == 2
    assert other in answer.err
    assert bundle.fingerprint_id in answer.err


def test_an_untrusted_bundle_is_status_5(stocked: Home) -> None:
    """A bundle signed by a key that is not trusted any more is refused, with the key's id."""
    for trusted in (stocked.dir / "keys" / "trusted").iterdir():
        keyid = trusted.stem
        trusted.unlink()

    answer = stocked.run("show", FID, "--json")

    assert answer.code == 5
    assert keyid[:12] in answer.json["error"]["message"]


def test_a_damaged_document_is_status_4_and_stays_where_it_is(stocked: Home) -> None:
    """Looking changes nothing: the same answer comes a second time."""
    (document,) = (stocked.dir / "store/local/profiles" / FID / "generations").iterdir()
    document.write_bytes(b"{}")
    before = stocked.files()

    assert [stocked.run("show", FID).code for _ in range(2)] == [4, 4]
    assert stocked.files() == before


def test_a_second_save_is_a_second_generation(home: Home) -> None:
    """Both documents are listed; the head names the newer one."""
    all_of_them = artifacts()
    first = tuple(one for one in all_of_them if one.identity.id in covering(all_of_them).units[0].needs)
    home.publish(first)
    home.publish()

    found = home.run("show", FID[:8], "--json").json

    assert found["generation"] == 2
    assert [(one["generation"], one["committed"]) for one in found["generations"]] == [(1, False), (2, True)]
    assert found["parent"] == found["generations"][0]["digest"]


def test_a_profile_without_a_bundle_shows_its_components(home: Home) -> None:
    """A writer that died before its first commit leaves components, and that is what is shown."""
    fingerprint = Fingerprint.of(components())
    home.store.write_profile(fingerprint.id, fingerprint.canonical)
    home.store.write_generation(fingerprint.id, 1, b"{}")
    assert home.store.generations(fingerprint.id)[0] == Head(
        1, home.store.generations(fingerprint.id)[0].digest
    )

    answer = home.run("show", fingerprint.id)

    assert answer.code == 0
    assert "no bundle was ever committed" in answer.out


def test_artifacts_are_listed_on_request(stocked: Home) -> None:
    """By kind is the rule; each key only with `--artifacts`."""
    key = artifacts()[0].key

    assert key not in stocked.run("show", FID).out
    assert key in stocked.run("show", FID, "--artifacts").out


def test_privacy_lists_the_paths_that_torch_left_in_the_artifacts(stocked: Home) -> None:
    """Real artifacts name the source they were compiled from and the cache folder of that time; status 1."""
    answer = stocked.run("show", FID, "--privacy", "--json")

    texts = {one["text"]: one for one in answer.json["privacy"]}
    assert answer.code == 1
    assert texts["/srv/fixture/generate.py"]["kind"] == "path"
    assert texts["/srv/fixture/generate.py"]["reveals"]
    assert any(place.startswith("inductor f") for place in texts["/srv/fixture/generate.py"]["in"])
    assert "/srv/fixture/generate.py" in stocked.run("show", FID, "--privacy").out


def test_privacy_of_artifacts_without_paths_is_clean(home: Home) -> None:
    """Status 0 means it may be given away, as far as a search can tell."""
    made = tuple(
        type(one)(one.kind, one.key, one.data.replace(b"/srv/fixture", b"srv_fixture_"), one.guards)
        for one in artifacts()
    )
    home.publish(made)

    answer = home.run("show", FID, "--privacy")

    assert answer.code == 0
    assert "nothing found" in answer.out


def test_paths_of_one_folder_are_folded_for_people(home: Home) -> None:
    """Hundreds of headers are one line for people, and one entry each in the JSON."""
    one, *rest = artifacts()
    paths = "".join(f" /opt/engine/a/b/c/d{index}/e.h" for index in range(3)).encode()
    pushed_and_popped = b"B" + struct.pack("<I", len(paths) + 1) + paths + b" 0"
    home.publish((type(one)(one.kind, one.key, one.data[:-1] + pushed_and_popped + b".", one.guards), *rest))

    assert "/opt/engine/a/b/c/ (3 paths)" in home.run("show", FID, "--privacy").out
    texts = {found["text"] for found in home.run("show", FID, "--privacy", "--json").json["privacy"]}
    assert {f"/opt/engine/a/b/c/d{index}/e.h" for index in range(3)} < texts
