"""Why calls compiled although there was a bundle: in words that are true, and not too many."""

from __future__ import annotations

import pytest

from cachekit.runtime.facts import MAX_REASONS, Facts
from cachekit.runtime.installer import Installed
from cachekit.runtime.misses import MAX_TOLD, Misses
from cachekit.runtime.profile import Profile
from tests.unit.runtime.helpers import FINGERPRINT, HOST, bundle, unit

ONE, DAMAGED = unit("one", needs=["a" * 64]), unit("damaged", needs=["b" * 64])


@pytest.fixture
def profile() -> Profile:
    """One whose bundle covers two units, of which one could not be installed."""
    return Profile(FINGERPRINT, HOST, bundle(units=[ONE, DAMAGED]), damaged={"b" * 64})


@pytest.mark.parametrize(
    ("units", "reason"),
    [
        ([ONE.id], "the installed bundle covers 4x8x1, and torch made something of it all the same"),
        ([DAMAGED.id], "the bundle covers 4x8x1, but not all that it needs was installed on this host"),
        ([ONE.id, "0" * 64], "the installed bundle does not cover 4x8x1"),
        ([], "the installed bundle does not cover 4x8x1"),
    ],
)
def test_each_kind_has_its_reason(profile: Profile, units: list[str], reason: str) -> None:
    """Not covered, not usable here, or not found."""
    misses = Misses()

    misses.add(profile, units, "4x8x1")

    assert misses.told == [reason]


def test_without_a_bundle_there_is_nothing_to_blame() -> None:
    """That there is none is told elsewhere."""
    misses = Misses()

    misses.add(Profile(FINGERPRINT, HOST, None), [ONE.id], "4x8x1")

    assert misses.told == []


def test_a_call_is_named_once_and_many_are_counted(profile: Profile) -> None:
    """An engine with a thousand sizes gets one line."""
    misses = Misses()

    for size in [*range(MAX_TOLD + 2), 0]:
        misses.add(profile, [], str(size))
    (few,) = misses.told
    for size in range(1000):
        misses.add(profile, [], str(size))

    assert few == "the installed bundle does not cover 0, 1, 2, 3, 4, 5 and 2 more"
    assert misses.told == ["the installed bundle does not cover 0, 1, 2, 3, 4, 5 and at least 58 more"]


def test_reasons_are_bounded() -> None:
    """Thousands of lost blobs are not thousands of reasons."""
    facts = Facts()

    for number in range(MAX_REASONS + 10):
        facts.note(f"blob {number} was lost")

    assert len(facts.told()) == MAX_REASONS + 1
    assert facts.told()[-1] == "and 10 more reasons"


def test_what_was_not_installed_explains_an_empty_start() -> None:
    """A bundle of which this host may use nothing says so."""
    facts = Facts()
    done = Installed()
    done.skipped["vector_isa avx512 is required, here avx2"] = 3

    facts.add_installed(done)

    assert facts.told() == [
        "3 artifacts were not installed on this host: vector_isa avx512 is required, here avx2"
    ]
