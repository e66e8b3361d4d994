"""Which calls belong to a generation, and when their shapes are registered."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cachekit.bundle import Shape
from cachekit.runtime.generations import MAX_KNOWN_CALLS, Generations
from cachekit.runtime.profile import Profile
from tests.unit.runtime.helpers import FINGERPRINT, HOST

SMALL, LARGE = Shape(512, 512, 1), Shape(1024, 1024, 1)


@pytest.fixture
def profile() -> Profile:
    """A profile without a bundle."""
    return Profile(FINGERPRINT, HOST, None)


@pytest.fixture
def books(profile: Profile) -> Generations:
    """Two calls are known, each with one unit."""
    generations = Generations()
    generations.learn("a", (profile, ("a" * 64,)))
    generations.learn("b", (profile, ("b" * 64,)))
    return generations


def rows(profile: Profile) -> dict[str, tuple[str, ...]]:
    """Labels and the units they ran."""
    return {row.shape.label: row.unit_ids for row in profile.take().shapes}


def test_a_call_alone_is_a_generation(books: Generations, profile: Profile) -> None:
    """Where nothing tells when a generation begins, each call is one."""
    assert books.add("a", SMALL)
    books.finish()

    assert rows(profile) == {"512x512x1": ("a" * 64,)}


def test_a_generation_registers_all_its_calls(books: Generations, profile: Profile) -> None:
    """Steps and denoisers of one generation count together, under the shapes that they ran."""
    books.start()
    assert not books.add("a", SMALL)
    assert not books.is_new("a")
    assert books.is_new("b")
    books.add("b", SMALL)
    assert profile.shapes() == []

    books.finish()

    assert rows(profile) == {"512x512x1": ("a" * 64, "b" * 64)}


@pytest.mark.parametrize("ends", ["start", "abandon"])
def test_an_unfinished_generation_registers_nothing(books: Generations, profile: Profile, ends: str) -> None:
    """One that failed, or that another one followed, never ran well."""
    books.start()
    books.add("a", SMALL)

    getattr(books, ends)()
    books.finish()

    assert rows(profile) == {}


def test_calls_after_a_generation_are_generations_of_their_own(books: Generations) -> None:
    """A denoiser called by hand, outside of the pipeline, counts at once."""
    books.start()
    books.finish()

    assert books.add("a", None)


def test_calls_without_a_shape_wait_for_a_label(books: Generations, profile: Profile) -> None:
    """The engine names what ran, once; what had a shape already keeps it."""
    books.add("a", None)
    books.finish()
    books.add("b", SMALL)
    books.finish()

    assert books.label(LARGE)
    assert not books.label(LARGE)

    assert rows(profile) == {"512x512x1": ("b" * 64,), "1024x1024x1": ("a" * 64,)}


def test_an_abandoned_call_does_not_wait_for_a_label(books: Generations) -> None:
    """A failed generation leaves nothing to name."""
    books.add("a", None)
    books.abandon()

    assert not books.label(SMALL)


def test_shapes_go_to_the_profile_that_ran(profile: Profile) -> None:
    """A pipeline that changed in between has two profiles, each with its own shapes."""
    other = Profile(FINGERPRINT, HOST, None)
    books = Generations()
    books.learn("a", (profile, ("a" * 64,)))
    books.learn("b", (other, ("b" * 64,)))
    for key in "ab":
        books.add(key, SMALL)
    books.finish()

    assert rows(profile) == {"512x512x1": ("a" * 64,)}
    assert rows(other) == {"512x512x1": ("b" * 64,)}


def test_a_recompile_teaches_new_units(books: Generations, profile: Profile) -> None:
    """What a call ran last is what counts."""
    books.learn("a", (profile, ("c" * 64,)))
    books.add("a", SMALL)
    books.finish()

    assert rows(profile) == {"512x512x1": ("c" * 64,)}


def test_a_call_that_is_not_known_is_no_part_of_a_generation(books: Generations, profile: Profile) -> None:
    """Nothing is registered for what nobody watched."""
    books.add("unknown", SMALL)
    books.finish()

    assert rows(profile) == {}


def test_the_oldest_calls_are_forgotten(profile: Profile) -> None:
    """An engine that passes another float at every step does not fill the memory."""
    books = Generations()
    for number in range(MAX_KNOWN_CALLS + 2):
        books.learn(number, (profile, ()))

    assert not books.knows(0)
    assert not books.knows(1)
    assert books.knows(2)
    assert books.knows(MAX_KNOWN_CALLS + 1)


def elsewhere(work: Callable[[], object]) -> None:
    """Do it on another thread."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_generation_belongs_to_its_thread(books: Generations, profile: Profile) -> None:
    """What another thread starts, runs and abandons meanwhile changes nothing."""
    books.start()
    books.add("a", SMALL)

    def other() -> None:
        assert books.is_new("a")
        assert books.add("b", LARGE)
        books.abandon()
        books.start()

    elsewhere(other)
    books.finish()

    assert rows(profile) == {"512x512x1": ("a" * 64,)}


def test_each_thread_names_what_it_ran_itself(books: Generations, profile: Profile) -> None:
    """A label never goes to what another thread ran."""
    books.add("a", None)
    books.finish()

    def other() -> None:
        books.add("b", None)
        books.finish()
        assert books.label(LARGE)
        assert not books.label(LARGE)

    elsewhere(other)
    assert books.label(SMALL)

    assert rows(profile) == {"512x512x1": ("a" * 64,), "1024x1024x1": ("b" * 64,)}


def test_a_thread_that_runs_nothing_names_what_any_thread_ran(books: Generations, profile: Profile) -> None:
    """An engine may generate on a worker and name shapes on its main thread."""

    def worker() -> None:
        books.add("a", None)
        books.finish()

    elsewhere(worker)

    assert books.label(SMALL)
    assert rows(profile) == {"512x512x1": ("a" * 64,)}


def test_what_nobody_names_does_not_fill_the_memory(profile: Profile) -> None:
    """An engine that never names a shape waits for nothing."""
    books = Generations()
    for number in range(MAX_KNOWN_CALLS + 2):
        books.learn(number, (profile, (f"{number:064}",)))
        books.add(number, None)
        books.finish()

    assert len(books._unlabelled) == MAX_KNOWN_CALLS
