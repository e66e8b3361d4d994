from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachekit.bundle import (
    Artifact,
    Bundle,
    Coverage,
    Entry,
    Shape,
    ShapeRow,
    Tombstone,
    Unit,
    complete,
    megacache,
    merge,
    plan_inline,
    to_payload,
)
from cachekit.bundle.bundle import CANDIDATES
from cachekit.bundle.limits import INLINE_BYTES, INLINE_TOTAL_BYTES
from cachekit.errors import ConfigurationError
from tests.unit.bundle.strategies import (
    FINGERPRINT,
    FINGERPRINT_ID,
    bundles,
    entries,
    torch_data,
    torch_key,
)


def entry(kind: str, number: int = 1, content: bytes = b"x", **changes: Any) -> Entry:
    """Return an entry of an artifact that was accepted at 1000 from contribution ``a``, unless changed."""
    partners = changes.pop("partners", ())
    guards = changes.pop("guards", "")
    data = torch_data(kind, guards, content, partners)
    made = Entry.of(
        Artifact(kind, torch_key(kind, number), data, guards=guards),
        data,
        accepted=1000,
        contribution="a" * 64,
        producer="p" * 64,
    )
    return replace(made, **changes)


def bundle(*members: Entry, **fields: Any) -> Bundle:
    """Return a bundle of these entries."""
    return Bundle("local", FINGERPRINT, FINGERPRINT_ID, members, **fields)


def withdraw(*members: Entry) -> Bundle:
    """Return a bundle that holds nothing but tombstones for these."""
    return bundle(tombstones=tuple(Tombstone(one.raw_digest, "wrong picture") for one in members))


def contributions(members: tuple[Entry, ...]) -> dict[str, str]:
    """Return which contribution each kind of entry comes from."""
    return {one.kind: one.contribution[0] for one in members}


@given(bundles(), bundles())
def test_merge_is_commutative(first: Bundle, second: Bundle) -> None:
    """Which bundle was there first does not matter, down to the bytes of the document."""
    assert merge(first, second) == merge(second, first)
    assert to_payload(merge(first, second)) == to_payload(merge(second, first))


@settings(max_examples=200)
@given(bundles(), bundles(), bundles())
def test_merge_is_associative(first: Bundle, second: Bundle, third: Bundle) -> None:
    """Replicas that merge in different orders end with the same document."""
    left, right = merge(merge(first, second), third), merge(first, merge(second, third))
    assert left == right
    assert to_payload(left) == to_payload(right)


@given(bundles(), bundles())
def test_merge_is_idempotent(first: Bundle, second: Bundle) -> None:
    """Merging what is already in changes nothing, contents and spares included."""
    assert first == merge(first, first)
    merged = merge(first, second)
    assert merged == merge(merged, second) == merge(first, merged)


@given(bundles(), bundles())
def test_merge_keeps_every_identity_that_is_not_withdrawn(first: Bundle, second: Bundle) -> None:
    """A merge shrinks nothing but by tombstones, and withdrawn bytes are nowhere among its entries."""
    merged = merge(first, second)
    live = {one.identity for one in merged.entries}
    assert len(live) == len(merged.entries)
    assert not merged.withdrawn & {one.raw_digest for one in merged.entries}
    for one in (*first.entries, *second.entries):
        if one.identity not in live:
            known = [spare for spare in merged.spare if spare.identity == one.identity]
            assert known
            assert any(spare.raw_digest in merged.withdrawn for spare in known)


@given(st.lists(entries(), max_size=12), st.randoms())
def test_bundle_is_the_same_however_its_entries_are_given(members: list[Entry], random: Any) -> None:
    """Order and grouping of the entries do not show: one by one, all at once, shuffled."""
    at_once = bundle(*members)
    random.shuffle(members)
    one_by_one = bundle()
    for member in members:
        one_by_one = merge(one_by_one, bundle(member))
    assert at_once == one_by_one


@given(bundles())
def test_withdrawn_bytes_do_not_travel(drawn: Bundle) -> None:
    """A document holds no inline bytes of what was withdrawn, and asks no store to keep them."""
    for spare in drawn.spare:
        if spare.raw_digest in drawn.withdrawn:
            assert spare.inline is None
            assert spare.stored_digest not in drawn.blobs - {one.stored_digest for one in drawn.entries}


def test_smallest_accepted_then_digest_wins() -> None:
    """The artifact that a store took first stays; of two taken in the same millisecond, the smaller digest."""
    late = entry("inductor", content=b"late", accepted=2000)
    early, same = entry("inductor", content=b"early"), entry("inductor", content=b"same")
    winner = min(early, same, key=lambda one: one.raw_digest)
    assert (winner,) == merge(merge(bundle(late), bundle(early)), bundle(same)).entries


def test_requirements_make_alternatives() -> None:
    """Artifacts for two kinds of CPU live side by side."""
    both = merge(
        bundle(entry("inductor", requires=(("vector_isa", "avx2"),))),
        bundle(entry("inductor", content=b"y", requires=(("vector_isa", "avx512"),))),
    )
    assert len(both.entries) == 2


def test_tombstone_beats_the_artifact_in_any_order() -> None:
    """An artifact that was withdrawn is gone, whoever still offers it."""
    bad, good = entry("inductor", content=b"bad"), entry("inductor", number=2)
    assert (good,) == merge(bundle(bad, good), withdraw(bad)).entries
    assert (good,) == merge(withdraw(bad), bundle(bad, good)).entries


def test_forgotten_loser_does_not_come_back() -> None:
    """The loser of an earlier merge is absent in every order once the winner is withdrawn."""
    winner, loser = entry("inductor", content=b"w"), entry("inductor", content=b"l", accepted=2000)
    merged = merge(merge(bundle(winner), bundle(loser)), withdraw(winner))
    assert merged.entries == ()
    assert merged == merge(merge(bundle(loser), withdraw(winner)), bundle(winner))


def test_replacement_of_a_withdrawn_artifact_wins() -> None:
    """What was withdrawn can be compiled and published again, though it is accepted later."""
    bad = entry("inductor", content=b"bad")
    state = merge(bundle(bad), withdraw(bad))
    epoch = state.epoch(bad.identity)
    again = entry("inductor", content=b"good", accepted=9000, epoch=epoch)
    assert epoch == 1
    assert (again,) == merge(state, bundle(again)).entries == merge(bundle(again), state).entries
    assert merge(state, bundle(again)).epoch(bad.identity) == 1


def test_epoch_of_something_new_is_zero() -> None:
    """An artifact that nobody has, or that is there and fine, needs no higher epoch."""
    one = entry("inductor")
    assert 0 == bundle().epoch(one.identity) == bundle(one).epoch(one.identity)


def test_two_reasons_for_one_tombstone_become_one() -> None:
    """A digest is withdrawn once, with the reason that sorts first."""
    one = entry("inductor")
    other = replace(withdraw(one), tombstones=(Tombstone(one.raw_digest, "key leaked"),))
    assert (Tombstone(one.raw_digest, "key leaked"),) == merge(withdraw(one), other).tombstones


def test_autotune_follows_the_winning_inductor_artifact() -> None:
    """Both compiled the same kernel; the tuning that is kept was measured for the code that is kept."""
    first = bundle(
        entry("inductor", content=b"1", contribution="a" * 64, accepted=1000),
        entry("autotune", content=b"1", contribution="a" * 64, accepted=2000),
    )
    second = bundle(
        entry("inductor", content=b"2", contribution="b" * 64, accepted=1500),
        entry("autotune", content=b"2", contribution="b" * 64, accepted=1500),
    )
    merged = merge(first, second)
    assert contributions(merged.entries) == {"inductor": "a", "autotune": "a"}
    assert contributions(merged.spare) == {"autotune": "b"}


def test_autotune_changes_sides_with_its_inductor_artifact() -> None:
    """When the winning code is withdrawn and compiled again elsewhere, its tuning comes along."""
    bad = entry("inductor", content=b"1", contribution="a" * 64)
    state = merge(bundle(bad, entry("autotune", content=b"1", contribution="a" * 64)), withdraw(bad))
    renewed = bundle(
        entry(
            "inductor", content=b"2", contribution="b" * 64, accepted=5000, epoch=state.epoch(bad.identity)
        ),
        entry("autotune", content=b"2", contribution="b" * 64, accepted=5000),
    )
    assert contributions(merge(state, renewed).entries) == {"inductor": "b", "autotune": "b"}


def test_autotune_without_any_winning_contribution_goes_by_order() -> None:
    """Where the tuning's own code is not there, the first accepted one is as good as any."""
    early = entry("autotune", content=b"1", contribution="a" * 64)
    late = entry("autotune", content=b"2", contribution="b" * 64, accepted=1001)
    assert (early,) == merge(bundle(late), bundle(early)).entries


def test_autotune_candidates_are_limited() -> None:
    """A fleet that tunes one kernel a hundred times does not make a hundred spares."""
    merged = bundle()
    for number in range(100):
        one = entry(
            "autotune", content=bytes([number]), contribution=f"{number:064x}", accepted=1000 + number
        )
        merged = merge(merged, bundle(one))
    assert len(merged.entries) + len(merged.spare) == CANDIDATES


def test_withdrawn_candidates_do_not_block_a_new_one() -> None:
    """With every kept candidate withdrawn, a new tuning is taken."""
    old = [entry("autotune", content=bytes([n]), contribution=f"{n:064x}") for n in range(CANDIDATES)]
    state = merge(bundle(*old), withdraw(*old))
    new = entry(
        "autotune", content=b"new", contribution="f" * 64, accepted=9000, epoch=state.epoch(old[0].identity)
    )
    assert state.entries == ()
    assert (new,) == merge(state, bundle(new)).entries


def test_other_namespace_or_fingerprint_is_not_merged() -> None:
    """Bundles of different pipelines never mix."""
    with pytest.raises(ConfigurationError):
        merge(bundle(), replace(bundle(), namespace="fleet"))
    with pytest.raises(ConfigurationError):
        merge(bundle(), replace(bundle(), fingerprint_id="0" * 64))


def test_seconds_that_are_claimed_are_the_smallest_measured() -> None:
    """Two cold runs differ; what a warm start saved is reported against the quicker one, and zero is no measurement."""
    parts = [bundle(cold={"first_call_s": value}) for value in (86.5, 0.0, 80.25)]
    assert merge(merge(parts[0], parts[1]), parts[2]).cold == {"first_call_s": 80.25}


PARTNER = torch_key("inductor", 1)


def test_aot_autograd_without_its_partner_is_not_published() -> None:
    """An entry that torch would count as a miss is left out; inductor alone is fine, some models bypass the other."""
    alone = entry("aot_autograd", partners=[(PARTNER, "")])
    assert complete(bundle(alone)).entries == ()
    pair = bundle(entry("inductor"), alone)
    assert pair == complete(pair)
    assert len(complete(bundle(entry("inductor"))).entries) == 1


@pytest.mark.parametrize(
    ("wanted", "offered", "kept"),
    [("a", "a", True), ("a", "b", False), ("a", "", True), ("", "", True)],
)
def test_partner_needs_the_same_guards(wanted: str, offered: str, kept: bool) -> None:
    """torch compares the guards of a partner as text, and takes an unguarded one always."""
    pair = bundle(
        entry("inductor", guards=offered), entry("aot_autograd", guards=wanted, partners=[(PARTNER, wanted)])
    )
    assert kept == (len(complete(pair).entries) == 2)


def test_both_graphs_of_a_training_step_are_needed() -> None:
    """Without its backward graph, a training artifact is a miss."""
    both = entry("aot_autograd", partners=[(PARTNER, ""), (torch_key("inductor", 2), "")])
    assert [one.kind for one in complete(bundle(entry("inductor"), both)).entries] == ["inductor"]


def test_coverage_of_what_is_not_there_is_dropped() -> None:
    """A unit without one of its artifacts covers nothing, and neither do the shapes that need it."""
    here, gone = entry("inductor"), entry("inductor", number=2)
    whole = Unit(dynamic=False, signature="1", needs=(here.identity.id,))
    broken = Unit(dynamic=False, signature="2", needs=tuple(sorted((here.identity.id, gone.identity.id))))
    small, large = Shape.of(512, 512, 1), Shape.of(1024, 1024, 1)
    coverage = Coverage(
        (whole, broken), (ShapeRow(small, (whole.id,)), ShapeRow(large, (whole.id, broken.id)))
    )
    found = complete(bundle(here, coverage=coverage)).coverage
    assert (whole,) == found.units
    assert [small] == [row.shape for row in found.shapes]
    assert coverage == complete(bundle(here, gone, coverage=coverage)).coverage


@given(bundles())
def test_complete_is_a_projection(drawn: Bundle) -> None:
    """Completing twice changes nothing more, and nothing that is named is missing."""
    done = complete(drawn)
    assert done == complete(done)
    here = {one.identity.id for one in done.entries}
    assert all(here.issuperset(unit.needs) for unit in done.coverage.units)
    assert all(done.coverage.covers(row.shape) for row in done.coverage.shapes)


def test_small_artifacts_travel_in_the_document() -> None:
    """Artifacts that take up to 4 KiB are inlined, the smallest first, until 4 MiB are in it."""
    small = entry("autotune", number=1, stored_size=300)
    limit = entry("autotune", number=2, stored_size=INLINE_BYTES)
    large = entry("inductor", number=3, stored_size=INLINE_BYTES + 1)
    assert {small.identity, limit.identity} == plan_inline([large, limit, small])
    assert {small.identity} == plan_inline([limit, small], used=INLINE_TOTAL_BYTES - 300)
    assert set() == plan_inline([small], used=INLINE_TOTAL_BYTES)


def test_blobs_are_what_a_store_must_keep() -> None:
    """Inlined, withdrawn and forgotten artifacts need no blob; a spare tuning does."""
    bad, kept = entry("inductor", content=b"bad"), entry("inductor", number=2)
    tuned = [entry("autotune", content=bytes([n]), contribution=f"{n:064x}") for n in range(2)]
    inlined = replace(entry("autotune", number=2), inline=b"x")
    state = merge(bundle(bad, kept, inlined, *tuned), withdraw(bad))
    assert {kept.stored_digest, *(one.stored_digest for one in tuned)} == state.blobs


@pytest.mark.slow
def test_entry_of_a_real_artifact_names_its_partners(compiled: Callable[[str], bytes]) -> None:
    """Entries made from what torch recorded form a complete bundle."""
    members = [
        Entry.of(one, one.data, accepted=1, contribution="a" * 64, producer="p" * 64)
        for one in megacache.decode(compiled("double"))
    ]
    whole = bundle(*members)
    assert whole == complete(whole)
    only_aot = bundle(*(one for one in members if one.kind == "aot_autograd"))
    assert complete(only_aot).entries == ()


def test_repr_is_one_line() -> None:
    """A bundle in a log says what it is, not all that it holds."""
    assert "<Bundle local/" in repr(bundle(entry("inductor")))
    assert len(repr(bundle(entry("inductor")))) < 120
