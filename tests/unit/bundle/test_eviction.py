"""What goes when a store is too large: order, sharing, protection, and that what stays is whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachekit.bundle import Bundle, Coverage, Entry, Shape, ShapeRow, Tombstone, Unit, complete
from cachekit.bundle.eviction import (
    HALF_LIFE_S,
    NO_UNIT,
    Group,
    Member,
    Plan,
    Use,
    groups_of,
    plan,
    without,
)
from tests.unit.bundle.strategies import FINGERPRINT, FINGERPRINT_ID, bundles, torch_key

NOW = 1_800_000_000.0
WEEK = HALF_LIFE_S
FRESH = Use(1, NOW)


def _group(
    name: str,
    pieces: Mapping[str, int],
    *,
    seconds: float = 10.0,
    starts: int = 1,
    age: float = 0.0,
    protected: bool = False,
) -> Group:
    return Group(Member("local", "f" * 64, name), pieces, seconds, Use(starts, NOW - age), protected)


def _plan(groups: Sequence[Group], limit: int | None, total: int | None = None) -> Plan:
    return plan(groups, total=_bytes(groups) if total is None else total, limit=limit, now=NOW)


def _bytes(groups: Sequence[Group]) -> int:
    pieces: dict[str, int] = {}
    for group in groups:
        pieces |= group.pieces
    return sum(pieces.values())


def _names(planned: Plan) -> list[str]:
    return [member.unit for member in planned.evicted]


def test_nothing_goes_while_everything_fits() -> None:
    """At the limit, and without one, all stays."""
    groups = [_group("a", {"a": 60}), _group("b", {"b": 40})]

    assert _plan(groups, 100) == Plan((), 0, 100)
    assert _plan(groups, None) == Plan((), 0, 100)


@pytest.mark.parametrize(
    ("cheap", "dear"),
    [
        (_group("x", {"x": 50}, seconds=5.0), _group("y", {"y": 50}, seconds=50.0)),
        (_group("x", {"x": 50}, starts=2), _group("y", {"y": 50}, starts=3)),
        (_group("x", {"x": 60}), _group("y", {"y": 50})),
        (_group("x", {"x": 50}, age=2 * WEEK), _group("y", {"y": 50}, age=WEEK)),
        (_group("x", {"x": 50}, starts=100, age=7 * WEEK), _group("y", {"y": 50})),
        (_group("x", {"x": 1}, seconds=0.0), _group("y", {"y": 50}, seconds=0.1)),
    ],
    ids=["seconds", "starts", "bytes", "age", "an upgrade", "needed by nothing"],
)
def test_the_least_valuable_goes_first(cheap: Group, dear: Group) -> None:
    """Seconds, starts, bytes and time since the last use each decide where the others are equal."""
    assert _names(_plan([dear, cheap], _bytes([dear, cheap]) - 1)) == ["x"]


def test_a_use_in_the_future_counts_as_now() -> None:
    """A clock that was wrong for a while does not make anything worth more than a use of this minute."""
    ahead = _group("x", {"x": 50}, age=-1000 * WEEK)

    assert ahead.worth(NOW) == _group("y", {"y": 50}).worth(NOW)


def test_shared_bytes_go_with_the_last_that_needs_them() -> None:
    """A piece of two units is freed when both are gone, and only then."""
    groups = [_group("a", {"a": 10, "both": 80}, starts=9), _group("b", {"b": 10, "both": 80})]

    assert _plan(groups, 95) == Plan(_plan(groups, 95).evicted[:1], 10, 90)
    assert _names(_plan(groups, 95)) == ["b"]
    assert _plan(groups, 50).left == 0


def test_shared_bytes_are_borne_by_all_who_need_them() -> None:
    """A unit with few bytes of its own and a share in a large kernel is not nearly free."""
    sharing = [_group(name, {name: 1, "kernel": 1000}) for name in ("a", "b")]
    alone = _group("c", {"c": 100})

    assert set(_names(_plan([*sharing, alone], 200))) == {"a", "b"}


def test_who_is_left_bears_the_whole_piece() -> None:
    """When one of two that share a kernel goes, the other is worth less than before: it goes next."""
    first, second = (
        _group(name, {name: 1, "kernel": 1000}, starts=n) for name, n in (("first", 1), ("second", 3))
    )
    alone = _group("alone", {"alone": 600}, starts=2)

    assert _names(_plan([alone, second, first], 650)) == ["first", "second"]


def test_what_frees_nothing_stays() -> None:
    """Losing a unit whose bytes all belong to something protected would cost seconds and free none."""
    live = _group("live", {"kernel": 100}, protected=True)

    assert _plan([live, _group("a", {"kernel": 100}, seconds=0.1)], 1) == Plan((), 0, 100)


def test_more_than_the_groups_hold_counts() -> None:
    """What no group explains takes room all the same."""
    assert _plan([_group("a", {"a": 10})], 50, total=100) == Plan((Member("local", "f" * 64, "a"),), 10, 90)


_sizes = {f"p{n}": 7 * n + 1 for n in range(8)}
_groups = st.lists(
    st.builds(
        lambda names, seconds, starts, age, protected: (names, seconds, starts, age, protected),
        st.frozensets(st.sampled_from(sorted(_sizes)), max_size=4),
        st.sampled_from((0.0, 0.5, 10.0, 650.0)),
        st.integers(1, 30),
        st.floats(-WEEK, 100 * WEEK),
        st.booleans(),
    ),
    max_size=9,
).map(
    lambda drawn: [
        _group(
            f"u{n}",
            {name: _sizes[name] for name in names},
            seconds=seconds,
            starts=starts,
            age=age,
            protected=protected,
        )
        for n, (names, seconds, starts, age, protected) in enumerate(drawn)
    ]
)


@given(_groups, st.integers(0, 250), st.randoms())
def test_a_plan_holds_its_promises(groups: list[Group], limit: int, random: Random) -> None:
    """It fits or nothing that may go would free a byte; protected groups stay; sums are right; order is no matter."""
    planned = _plan(groups, limit)
    gone = set(planned.evicted)
    stays = [group for group in groups if group.member not in gone]
    bound = {piece for group in groups if group.protected for piece in group.pieces}

    assert planned.left == _bytes(stays) == _bytes(groups) - planned.freed
    assert planned.left <= limit or not any(
        group.pieces.keys() - bound for group in stays if not group.protected
    )
    assert all(group in stays for group in groups if group.protected)
    assert len(gone) == len(planned.evicted)
    shuffled = list(groups)
    random.shuffle(shuffled)
    assert _plan(shuffled, limit) == planned


@given(_groups, st.integers(0, 250), st.integers(0, 250))
def test_a_smaller_limit_only_adds_to_a_plan(groups: list[Group], one: int, other: int) -> None:
    """What goes at a limit goes, in the same order, at any smaller one."""
    fewer, more = (_plan(groups, limit).evicted for limit in (max(one, other), min(one, other)))

    assert more[: len(fewer)] == fewer


@given(_groups.filter(bool), st.integers(0, 250), st.data())
def test_more_use_never_makes_a_unit_go(groups: list[Group], limit: int, data: st.DataObject) -> None:
    """A unit that stays would stay too if it had been used more often, or later."""
    index = data.draw(st.integers(0, len(groups) - 1))
    chosen = groups[index]
    used = Use(
        chosen.use.starts + data.draw(st.integers(0, 5)), chosen.use.last + data.draw(st.floats(0, WEEK))
    )
    busier = [*groups[:index], replace(chosen, use=used), *groups[index + 1 :]]

    if chosen.member not in _plan(groups, limit).evicted:
        assert chosen.member not in _plan(busier, limit).evicted


# -- bundles -----------------------------------------------------------------------------------------------------------


def _unused(bundle: Bundle, **options: bool) -> list[Group]:
    return groups_of(bundle, {}, unused=FRESH, papers={"document": 100}, **options)


def _held(bundle: Bundle) -> set[str]:
    return {entry.identity.id for entry in bundle.entries}


@given(bundles(), st.data())
def test_a_bundle_without_some_groups_is_whole(drawn: Bundle, data: st.DataObject) -> None:
    """What stays has all it needs, nobody else's needs go, tombstones stay, and the plan's bytes were right."""
    bundle = complete(drawn)
    groups = _unused(bundle)
    gone = data.draw(st.sets(st.sampled_from([group.member for group in groups]))) if groups else set()

    left = without(bundle, gone)

    assert left == complete(left)
    assert left.coverage.unit_ids == bundle.coverage.unit_ids - {member.unit for member in gone}
    assert set(left.coverage.units) <= set(bundle.coverage.units)
    assert all(
        row.unit_ids and left.coverage.unit_ids.issuperset(row.unit_ids) for row in left.coverage.shapes
    )
    assert (left.tombstones, left.generation, left.parent) == (
        bundle.tombstones,
        bundle.generation,
        bundle.parent,
    )
    stays = {piece for group in groups if group.member not in gone for piece in group.pieces}
    assert {f"local/{digest}" for digest in left.blobs} == {
        piece for piece in stays if piece.count("/") == 1 and piece.startswith("local/")
    }


@given(bundles())
def test_a_bundle_without_everything_is_empty(drawn: Bundle) -> None:
    """When all groups go, no artifact, unit or shape is left, and no blob."""
    bundle = complete(drawn)

    left = without(bundle, [group.member for group in _unused(bundle)])

    assert (left.entries, left.coverage, left.blobs) == ((), Coverage(), frozenset())


@given(bundles())
def test_taking_nothing_out_changes_nothing(drawn: Bundle) -> None:
    """A whole bundle without nothing is itself."""
    bundle = complete(drawn)

    assert without(bundle, []) == bundle
    assert without(
        bundle, [Member("other", bundle.fingerprint_id, unit.id) for unit in bundle.coverage.units]
    ) == (bundle)


def _entry(kind: str, number: int, *, partners: tuple[str, ...] = (), size: int = 50) -> Entry:
    key = torch_key(kind, number)
    digest = f"{number:064x}"
    return Entry(
        kind, key, "", (), digest, size, digest, size, None, 1, "c" * 64, "d" * 64, tuple(sorted(partners))
    )


def _bundle(entries: Sequence[Entry], coverage: Coverage) -> Bundle:
    return Bundle("local", FINGERPRINT, FINGERPRINT_ID, tuple(entries), coverage)


def _unit(name: str, *needs: Entry, seconds: float = 10.0) -> Unit:
    ids = tuple(sorted(entry.identity.id for entry in needs))
    return Unit(dynamic=False, signature=f'"{name}"', needs=ids, seconds=seconds)


def test_a_partner_that_no_unit_names_stays_with_who_looks_it_up() -> None:
    """A unit that names only its aot_autograd artifact keeps the inductor artifact behind it."""
    graph = _entry("inductor", 1)
    outer = _entry("aot_autograd", 2, partners=(graph.key,))
    first, second = _unit("first", outer), _unit("second", graph)
    bundle = _bundle([graph, outer], Coverage((first, second)))

    left = without(bundle, [Member("local", FINGERPRINT_ID, second.id)])

    assert _held(left) == _held(bundle)
    assert left.coverage.units == (first,)


def test_a_unit_goes_with_every_shape_that_runs_it() -> None:
    """A shape that runs two units is not covered any more when one of them goes; the other unit stays."""
    entries = [_entry("inductor", 1), _entry("inductor", 2)]
    one, two = _unit("one", entries[0]), _unit("two", entries[1])
    shape, other = Shape.of(512, 512, 1), Shape.of(768, 768, 1)
    rows = (ShapeRow(shape, tuple(sorted((one.id, two.id)))), ShapeRow(other, (two.id,)))
    bundle = _bundle(entries, Coverage((one, two), rows))

    left = without(bundle, [Member("local", FINGERPRINT_ID, one.id)])

    assert [row.shape for row in left.coverage.shapes] == [other]
    assert _held(left) == {entries[1].identity.id}


def test_alternatives_of_a_unit_go_together() -> None:
    """The same compile with the artifacts of two hosts is one unit: seconds are the smaller, and both go."""
    entries = [_entry("inductor", 1), _entry("inductor", 2)]
    coverage = Coverage((_unit("same", entries[0], seconds=9.0), _unit("same", entries[1], seconds=8.0)))
    bundle = _bundle(entries, coverage)

    (group,) = _unused(bundle)

    assert group.seconds == 8.0
    assert without(bundle, [group.member]).entries == ()


def test_an_artifact_that_nothing_needs_is_worth_nothing() -> None:
    """It goes before any unit, by itself."""
    used, loose = _entry("inductor", 1), _entry("inductor", 2, size=1)
    bundle = _bundle([used, loose], Coverage((_unit("u", used, seconds=0.0),)))
    groups = _unused(bundle)

    planned = plan(groups, total=151, limit=150, now=NOW)

    assert planned.evicted == (Member("local", FINGERPRINT_ID, NO_UNIT, loose.identity.id),)
    assert _held(without(bundle, planned.evicted)) == {used.identity.id}


def test_what_was_withdrawn_stays_withdrawn() -> None:
    """An empty bundle still says which bytes must never be used."""
    entry = _entry("inductor", 1)
    bundle = replace(_bundle([entry], Coverage()), tombstones=(Tombstone(entry.raw_digest, "wrong picture"),))

    left = without(bundle, [group.member for group in _unused(bundle)])

    assert left.withdrawn == {entry.raw_digest}
    assert [spare.raw_digest for spare in left.spare] == [entry.raw_digest]


def test_contributions_are_kept_by_what_came_with_them() -> None:
    """A statement is freed with the last artifact that names it; documents with the last group."""
    first, second = _entry("inductor", 1), replace(_entry("inductor", 2), contribution="e" * 64)
    bundle = _bundle([first, second], Coverage((_unit("one", first), _unit("two", second))))

    groups = groups_of(bundle, {}, unused=FRESH, papers={"document": 100, "c" * 64: 20, "e" * 64: 30})

    assert sorted(sum(group.pieces.values()) for group in groups) == [170, 180]
    assert plan(groups, total=250, limit=0, now=NOW).left == 0


def test_uses_are_by_unit() -> None:
    """Each unit has its own starts and last use; one that nobody noted is taken as new."""
    first, second = _entry("inductor", 1), _entry("inductor", 2)
    one, two = _unit("one", first), _unit("two", second)
    bundle = _bundle([first, second], Coverage((one, two)))

    groups = groups_of(bundle, {one.id: Use(9, NOW - 5)}, unused=Use(1, NOW - 50), papers={})

    assert {group.member.unit: group.use for group in groups} == {
        one.id: Use(9, NOW - 5),
        two.id: Use(1, NOW - 50),
    }
