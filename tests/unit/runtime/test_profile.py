"""What a session knows of one fingerprint: what is kept, what is new, and what a save takes and gives back."""

from __future__ import annotations

from dataclasses import replace

from cachekit.bundle import Artifact, Shape, requires
from cachekit.runtime.profile import Needs, Pending, Profile, coverage_of
from cachekit.runtime.recorder import Window
from tests.unit.runtime.helpers import (
    FINGERPRINT,
    HOST,
    KERNEL,
    OTHER_KERNEL,
    PROBE,
    bundle,
    fixture_artifacts,
    kernel,
    unit,
    window,
)

Artifacts = tuple[Artifact, ...]
AUTOTUNE = Artifact("autotune", f"aa/{'0' * 64}.best_config", b'{"XBLOCK": 8}')


def profile(*kept: Artifact, **options: object) -> Profile:
    """A profile whose bundle, if it has any, holds these artifacts."""
    given = bundle(*kept) if kept else None
    return Profile(FINGERPRINT, HOST, given, **options)  # type: ignore[arg-type]


def required(artifacts: Artifacts) -> Artifacts:
    """The artifacts as a host with ``HOST`` files them."""
    return tuple(replace(artifact, requires=requires(HOST)) for artifact in artifacts)


def identities(pending: Pending) -> set[str]:
    """What a save would add."""
    return {artifact.identity.id for artifact in pending.artifacts}


# --- absorbing -----------------------------------------------------------------------------------------------------


def test_what_is_absorbed_is_new_once(artifacts: Artifacts) -> None:
    """Artifacts that no bundle holds are new, whole, until a save takes them."""
    known = profile()

    needs = known.absorb(window(artifacts))

    assert known.dirty
    pending = known.take()
    assert identities(pending) == needs.graphs
    assert {a.data for a in pending.artifacts} == {a.data for a in artifacts}
    assert not known.dirty
    assert not known.take()


def test_what_the_bundle_holds_is_not_new(artifacts: Artifacts) -> None:
    """A hit starts clean, and still says what it needs."""
    known = profile(*required(artifacts))

    needs = known.absorb(window(artifacts))

    assert not known.dirty
    assert needs.graphs == {artifact.identity.id for artifact in required(artifacts)}


def test_artifacts_with_cpp_require_the_host(artifacts: Artifacts) -> None:
    """An inductor artifact with C++ in it is for one kind of CPU, and its aot_autograd partner with it."""
    known = profile()

    known.absorb(window(artifacts))

    assert {artifact.requires for artifact in known.take().artifacts} == {requires(HOST)}


def test_an_artifact_without_cpp_requires_nothing(artifacts: Artifacts) -> None:
    """A graph that runs no C++ may be used on any host, and so may its partner."""
    plain = [
        replace(
            a,
            data=a.data.replace(b"async_compile.cpp", b"async_compile.XXX").replace(
                b'extern "C"', b"extern    "
            ),
        )
        for a in artifacts
    ]
    known = profile()

    known.absorb(window(plain))

    assert {artifact.requires for artifact in known.take().artifacts} == {()}


def test_a_partner_that_comes_alone_inherits_from_the_bundle(artifacts: Artifacts) -> None:
    """Where only the aot_autograd artifact is recorded, its partner's requirement is that of the bundle's entry."""
    inductor = [a for a in artifacts if a.kind == "inductor"]
    partners = [a for a in artifacts if a.kind == "aot_autograd"]
    known = profile(*required(tuple(inductor)))

    known.absorb(window(partners))

    assert {(a.kind, a.requires) for a in known.take().artifacts} == {("aot_autograd", requires(HOST))}


def test_a_partner_of_an_earlier_window_counts_too(artifacts: Artifacts) -> None:
    """Partners may be recorded by different calls."""
    known = profile()

    for artifact in sorted(artifacts, key=lambda a: a.kind, reverse=True):
        known.absorb(window([artifact]))

    assert {artifact.requires for artifact in known.take().artifacts} == {requires(HOST)}


def test_guards_are_part_of_what_is_filed() -> None:
    """Two compiles of one key are told apart by their guards."""
    guarded = fixture_artifacts("guards")
    known = profile()

    known.absorb(window(guarded))

    found = known.take().artifacts
    assert sorted((a.kind, a.key, a.guards) for a in found) == sorted(
        (a.kind, a.key, a.guards) for a in guarded
    )


def test_other_kinds_of_torch_are_dropped() -> None:
    """Profile-guided optimisation and torch's own precompile do not travel."""
    known = profile()

    needs = known.absorb(Window([("pgo", "job:0", b"x"), ("precompile", "any key", b"y")]))

    assert not known.dirty
    assert needs == Needs()


def test_of_two_results_for_one_identity_the_last_is_kept(artifacts: Artifacts) -> None:
    """Autotuning may run twice; the result that is in use is the one that is saved."""
    known = profile()

    known.absorb(window([AUTOTUNE]))
    known.absorb(window([replace(AUTOTUNE, data=b'{"XBLOCK": 16}')]))

    assert [a.data for a in known.take().artifacts] == [b'{"XBLOCK": 16}']


def test_autotuning_is_told_as_made_or_found() -> None:
    """What the bundle held was found, anything else was made now."""
    assert profile().absorb(window([AUTOTUNE])).tuned == {AUTOTUNE.identity.id: True}
    assert profile(AUTOTUNE).absorb(window([AUTOTUNE])).tuned == {AUTOTUNE.identity.id: False}


def test_kernels_are_new_unless_the_bundle_has_them() -> None:
    """A kernel goes by its path: the saver reads its bytes later."""
    known = profile(kernel(OTHER_KERNEL, **HOST))

    needs = known.absorb(Window([], {KERNEL: True, OTHER_KERNEL: False}))

    assert needs.kernels == {KERNEL: True, OTHER_KERNEL: False}
    assert known.take().kernel_paths == {KERNEL}


# --- what could not be used ----------------------------------------------------------------------------------------


def test_damaged_entries_are_offered_again(artifacts: Artifacts) -> None:
    """What the bundle lists and nobody could read is new when it is made again; the rest is not."""
    kept = required(artifacts)
    known = profile(*kept, damaged={kept[0].identity.id})

    known.absorb(window(artifacts))

    assert identities(known.take()) == {kept[0].identity.id}


def test_damaged_kernels_are_offered_again() -> None:
    """A kernel that could not be installed, damaged or for another host, was compiled here and is new."""
    theirs, damaged = kernel(KERNEL, compiler="theirs"), kernel(OTHER_KERNEL, **HOST)
    known = profile(theirs, damaged, damaged={theirs.identity.id, damaged.identity.id})

    known.absorb(Window([], {KERNEL: True, OTHER_KERNEL: True}))

    assert known.take().kernel_paths == {KERNEL, OTHER_KERNEL}


def test_a_kernel_of_which_one_entry_was_installed_is_kept() -> None:
    """Of several hosts' kernels with one path, one that could be used here is enough."""
    ours, theirs = kernel(KERNEL, **HOST), kernel(KERNEL, compiler="theirs")
    known = profile(ours, theirs, damaged={theirs.identity.id})

    known.absorb(Window([], {KERNEL: False}))

    assert not known.dirty


def test_what_was_mended_is_not_offered_again() -> None:
    """After a save the kernel is kept like any other."""
    damaged = kernel(KERNEL, **HOST)
    known = profile(damaged, damaged={damaged.identity.id})
    known.absorb(Window([], {KERNEL: True}))
    known.take()
    known.adopt(bundle(damaged, generation=2))

    known.absorb(Window([], {KERNEL: False}))

    assert not known.dirty


def test_what_is_damaged_stays_so_until_it_is_mended(artifacts: Artifacts) -> None:
    """A save of something else does not make a damaged entry count as kept."""
    kept = required(artifacts)
    known = profile(*kept, AUTOTUNE, damaged={AUTOTUNE.identity.id})
    known.adopt(bundle(*kept, AUTOTUNE, generation=2))

    known.absorb(window([AUTOTUNE]))

    assert identities(known.take()) == {AUTOTUNE.identity.id}


def test_a_baker_offers_everything_again(artifacts: Artifacts) -> None:
    """With ``offer_all`` a warm start hands over what it used, kernels included, in case a blob was lost."""
    known = profile(*required(artifacts), kernel(**HOST), offer_all=True)

    needs = known.absorb(window(artifacts, found=True))

    pending = known.take()
    assert identities(pending) == needs.graphs
    assert pending.kernel_paths == {KERNEL}


def test_a_baker_offers_once_per_start(artifacts: Artifacts) -> None:
    """What was saved is not offered a second time."""
    kept = required(artifacts)
    known = profile(*kept, offer_all=True)
    known.absorb(window(artifacts))
    known.take()
    known.adopt(bundle(*kept, generation=2))

    known.absorb(window(artifacts))

    assert not known.dirty


# --- saving --------------------------------------------------------------------------------------------------------


def test_a_failed_save_gives_everything_back(artifacts: Artifacts) -> None:
    """What was taken and not saved is new again, and the next save takes the same."""
    known = profile()
    made = unit("static")
    known.absorb(window(artifacts, compiled=True))
    known.add_unit(made, [KERNEL])
    known.add_shape(Shape(8, 8, 1), [made.id])
    taken = known.take()
    assert not known.unsaved

    known.give_back(taken)

    again = known.take()
    assert again == taken
    assert (len(again.artifacts), again.kernel_paths) == (4, {KERNEL})
    assert again.units == ((made, frozenset({KERNEL})),)
    assert [row.shape for row in again.shapes] == [Shape(8, 8, 1)]


def test_a_result_that_comes_during_a_save_is_kept_if_it_fails() -> None:
    """The last result is the one in use; the bundle's first one stays if the save goes well, as in any bundle."""
    known = profile()
    first, last = AUTOTUNE, replace(AUTOTUNE, data=b'{"XBLOCK": 16}')
    known.absorb(window([first]))
    taken = known.take()
    known.absorb(window([last]))
    known.give_back(taken)
    assert known.take().artifacts == (last,)

    known.absorb(window([first]))
    known.adopt(bundle(last))
    assert not known.dirty


def test_what_was_taken_is_not_taken_again(artifacts: Artifacts) -> None:
    """While a save is in progress, another use of the same artifacts is not new."""
    known = profile()
    known.absorb(window(artifacts, compiled=True))
    known.take()

    known.absorb(window(artifacts, found=True))

    assert not known.dirty


def test_what_is_being_saved_is_still_known() -> None:
    """While a save is in progress its units keep their cold seconds and its shapes are covered."""
    known = profile()
    cold = unit("one", needs=["inductor:1"], seconds=80.0)
    known.add_unit(cold, [])
    known.add_shape(Shape(8, 8, 1), [cold.id])
    known.take()

    known.add_unit(replace(cold, seconds=0.5), [])
    known.add_shape(Shape(8, 8, 1), [cold.id])

    assert known.known_units() == {cold.id: cold}
    assert known.unit_for(Needs(graphs={"inductor:1"})) == cold
    assert known.shapes() == [Shape(8, 8, 1)]
    assert not known.unsaved


def test_an_adopted_bundle_is_what_is_kept(artifacts: Artifacts) -> None:
    """What others published in the same generation is no longer new either."""
    known = profile()
    known.adopt(bundle(*required(artifacts), AUTOTUNE, generation=3))

    needs = known.absorb(window([*artifacts, AUTOTUNE]))

    assert not known.dirty
    assert known.bundle is not None
    assert known.bundle.generation == 3
    assert needs.tuned == {AUTOTUNE.identity.id: False}


# --- units ---------------------------------------------------------------------------------------------------------


def test_a_unit_is_kept_as_it_was_recorded_cold() -> None:
    """A warm run of a unit, with its short time, does not replace it."""
    cold = unit("one", seconds=80.0)
    known = Profile(FINGERPRINT, HOST, bundle(units=[cold]))

    known.add_unit(replace(cold, seconds=0.5), [])

    assert not known.dirty
    assert known.known_units() == {cold.id: cold}


def test_a_unit_of_this_session_is_kept_as_it_was_made_first() -> None:
    """Within a session, too, the first run is the cold one."""
    known = profile()
    known.add_unit(unit("one", seconds=80.0), [KERNEL])

    known.add_unit(unit("one", seconds=0.5), [])

    assert known.take().units == ((unit("one", seconds=80.0), frozenset({KERNEL})),)


def test_a_graph_is_found_by_its_artifacts() -> None:
    """The unit of a graph that was found again is the one that needs what it is made of."""
    one, two = unit("one", needs=["inductor:1", "kernel:1"]), unit("two", needs=["inductor:2"])
    known = Profile(FINGERPRINT, HOST, bundle(units=[one, two]))

    assert known.unit_for(Needs(graphs={"inductor:1"})) == one
    assert known.unit_for(Needs(graphs={"inductor:2"})) == two
    assert known.unit_for(Needs(graphs={"inductor:1", "inductor:2"})) is None
    assert known.unit_for(Needs()) is None


def test_autotuning_does_not_tell_graphs_apart() -> None:
    """A graph with another autotuning result than the unit lists is still that unit's."""
    one = unit("one", needs=["autotune:1", "inductor:1"])
    known = Profile(FINGERPRINT, HOST, bundle(units=[one]))

    assert known.unit_for(Needs(graphs={"inductor:1"}, tuned={"autotune:9": True})) == one


def test_the_smallest_unit_that_fits_is_chosen() -> None:
    """Of a unit that has the graph alone and one that has more, the graph's own is meant."""
    small, large = unit("small", needs=["inductor:1"]), unit("large", needs=["inductor:1", "inductor:2"])

    for order in ([small, large], [large, small]):
        known = profile()
        for made in order:
            known.add_unit(made, [])
        assert known.unit_for(Needs(graphs={"inductor:1"})) == small


# --- shapes --------------------------------------------------------------------------------------------------------


def test_a_shape_that_the_bundle_covers_is_not_saved_again() -> None:
    """A row is written only if it says something new."""
    one, two = unit("one"), unit("two")
    shape = Shape(1024, 1024, 1)
    known = Profile(FINGERPRINT, HOST, bundle(units=[one, two], shapes=[(shape, one)]))

    known.add_shape(shape, [one.id])
    assert not known.unsaved

    known.add_shape(shape, [one.id, two.id])
    assert [row.unit_ids for row in known.take().shapes] == [tuple(sorted([one.id, two.id]))]


def test_a_label_alone_does_not_make_a_session_dirty() -> None:
    """It is saved at the end and not worth a save of its own."""
    one = unit("one")
    known = Profile(FINGERPRINT, HOST, bundle(units=[one]))

    known.add_shape(Shape(8, 8, 1), [one.id])

    assert not known.dirty
    assert known.unsaved


def test_a_shape_names_all_that_ran() -> None:
    """A generation runs several calls, and a second generation adds to the first."""
    known = profile()

    known.add_shape(Shape(8, 8, 1), ["b" * 64])
    known.add_shape(Shape(8, 8, 1), ["a" * 64])

    assert known.take().shapes[0].unit_ids == ("a" * 64, "b" * 64)


def test_a_shape_for_which_nothing_was_compiled_is_not_covered() -> None:
    """A row without units would claim that there is nothing left to compile."""
    known = profile()

    known.add_shape(Shape(8, 8, 1), [])

    assert not known.unsaved
    assert known.shapes() == []


def test_shapes_are_those_of_the_bundle_and_of_the_session() -> None:
    """Sorted, each once."""
    one = unit("one")
    known = Profile(FINGERPRINT, HOST, bundle(units=[one], shapes=[(Shape(512, 512, 1), one)]))

    known.add_shape(Shape(256, 512, 1), [one.id])
    known.add_shape(Shape(512, 512, 1), [one.id])

    assert known.shapes() == [Shape(256, 512, 1), Shape(512, 512, 1)]


# --- what is published ---------------------------------------------------------------------------------------------


def test_units_with_kernels_need_them_and_every_probe() -> None:
    """A kernel is looked up under a command line that the probes decide; a unit without kernels needs neither."""
    with_kernel, without = unit("one", needs=["inductor:1"]), unit("two", needs=["inductor:2"])
    pending = Pending((), frozenset(), ((with_kernel, frozenset({KERNEL})), (without, frozenset())), ())

    found = {u.signature: u.needs for u in coverage_of(pending, {KERNEL: "kernel:1"}, [PROBE]).units}

    assert found[with_kernel.signature] == tuple(sorted(["inductor:1", "kernel:1", PROBE]))
    assert found[without.signature] == ("inductor:2",)


# --- what a bundle saved -------------------------------------------------------------------------------------------


def test_a_unit_is_claimed_once() -> None:
    """Compiled again after a reset, torch finds what the session has by then: the bundle saves nothing any more."""
    one, two = unit("one", seconds=30.0), unit("two", seconds=5.0)
    known = Profile(FINGERPRINT, HOST, bundle(units=[one, two]))

    assert known.claim([one.id]) == [30.0]
    assert known.claim([one.id]) is None
    assert known.claim([one.id, two.id]) == [5.0]


def test_what_the_session_made_is_never_claimed() -> None:
    """Neither in that session nor together with a unit of the bundle, also once it is saved."""
    one, made = unit("one"), unit("made")
    known = Profile(FINGERPRINT, HOST, bundle(units=[one]))
    known.add_unit(made, ())

    assert known.claim([made.id]) is None
    known.adopt(bundle(units=[one, made], generation=2))
    assert known.claim([made.id]) is None
    assert known.claim([one.id, made.id]) is None


def test_a_unit_with_a_damaged_need_is_not_claimed() -> None:
    """It was not installed whole; the same unit made on another host counts where that one's needs were."""
    one, other = unit("one", needs=["a" * 64], seconds=3.0), unit("one", needs=["b" * 64], seconds=2.0)

    assert Profile(FINGERPRINT, HOST, bundle(units=[one]), damaged={"a" * 64}).claim([one.id]) is None
    both = Profile(FINGERPRINT, HOST, bundle(units=[one, other]), damaged={"a" * 64})
    assert both.claim([one.id]) == [2.0]


def test_a_graph_of_a_failed_call_is_not_claimed_later() -> None:
    """Its seconds were never counted, so neither is what they saved."""
    one = unit("one", needs=["a" * 64])
    known = Profile(FINGERPRINT, HOST, bundle(units=[one]))

    known.forgo(Needs(graphs={"a" * 64}))

    assert known.claim([one.id]) is None
