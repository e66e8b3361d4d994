"""One pipeline from attach to close, in one process: a fresh private folder stands for another process.

What takes a process of its own (exit, fork, no C++ compile) is in tests/functional.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cachekit.bundle import Shape
from cachekit.errors import StrictMissError
from cachekit.identity import Fingerprint, Plan
from cachekit.runtime import process, session, torch_private
from cachekit.runtime.session import Session
from cachekit.settings import Settings
from tests.unit.runtime.helpers import FINGERPRINT, HOST

OTHER = Fingerprint.of({**FINGERPRINT.components, "pipeline": {"family": "other"}})
Start = Callable[..., Session]


class Product(torch.nn.Module):
    """A matrix product: compiles without any C++ kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8, 8), 0.5))

    def forward(self, x: torch.Tensor, fail: Any = None) -> torch.Tensor:
        """Multiply, then fail if asked to."""
        y = x @ self.weight
        if fail is not None:
            torch._dynamo.graph_break()
            fail()
        return y


class CancelledError(Exception):
    """A generation was cancelled."""


def cancel() -> None:
    """Cancel it."""
    raise CancelledError


def call(module: torch.nn.Module, rows: int, *others: Any) -> torch.Tensor:
    """One call."""
    with torch.no_grad():
        result: torch.Tensor = module(torch.ones(rows, 8), *others)
    return result


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiling: Path, no_answers: dict[str, bool]
) -> Iterator[Start]:
    """Start a session as another process would: with an empty folder, and nothing in Dynamo's memory.

    ``start(module)`` compiles the module through the session and observes it. ``alone=False`` joins the process of
    the session before. All are closed in the end.
    """
    started: list[Session] = []

    def make(
        module: torch.nn.Module,
        *,
        plan: Plan | None = None,
        identify: Callable[[], Fingerprint] = lambda: FINGERPRINT,
        label: Any = None,
        alone: bool = True,
        **settings: Any,
    ) -> Session:
        if alone:
            assert all(made.state == "closed" for made in started)
            torch._dynamo.reset()
            monkeypatch.setattr(session, "shared", process.SharedState())
        plan = plan or Plan("cpu")
        chosen = Settings(**{"dir": tmp_path / "cachekit", **settings})
        made = Session(chosen, plan, identify=identify, cpp_requirements=lambda: HOST, label=label)
        started.append(made)
        made.bind()
        made.undo(torch_private.set_compiled_call, module, None)
        torch.nn.Module.compile(module, backend=made.backend(), dynamic=plan.dynamic)
        compiled = torch_private.compiled_call(module)
        assert compiled is not None
        torch_private.set_compiled_call(module, made.observed("module", compiled))
        return made

    before = {name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    yield make
    for made in reversed(started):
        made.close()
    assert {name: os.environ.get(name) for name in before} == before


def run(start: Start, *sizes: int, **options: Any) -> Session:
    """A whole session: start, one call per size, close."""
    module = Product()
    with start(module, **options) as made:
        for rows in sizes:
            call(module, rows)
            made.register_shape(rows, 8, 1)
    return made


# --- cold and warm -------------------------------------------------------------------------------------------------


def test_a_cold_start_records_and_saves(start: Start) -> None:
    """What was compiled is published by the first generation's save, and the state says where it stands."""
    module = Product()
    cold = start(module)
    assert cold.state == "recording"

    result = call(module, 4)
    assert cold.save(wait=True)

    report = cold.report()
    torch.testing.assert_close(result, torch.full((4, 8), 4.0))
    assert cold.state == "clean"
    assert report.misses == {"inductor": 1, "aot_autograd": 1}
    assert report.hits == {}
    assert report.saved_generations == (1,)
    assert report.generation == 1
    assert report.effective is None
    assert report.first_calls_s > 0
    assert report.fingerprint == FINGERPRINT.id


def test_a_warm_start_hits_and_saves_nothing(start: Start) -> None:
    """With the bundle installed nothing is compiled, and its call counts against the recorded cold one."""
    cold = run(start, 4).report()
    module = Product()
    warm = start(module)
    assert warm.state == "warm"

    result = call(module, 4)
    assert warm.save(wait=True)

    report = warm.report()
    torch.testing.assert_close(result, torch.full((4, 8), 4.0))
    assert warm.state == "clean"
    assert report.installed == {"inductor": 1, "aot_autograd": 1}
    assert report.misses == {}
    assert report.hits["inductor"] == 1
    assert report.cold_s == pytest.approx(cold.first_calls_s)
    assert report.covered_calls_s == report.first_calls_s > 0
    assert report.effective is not None
    assert not report.inert
    assert report.saved_generations == ()
    assert report.shapes == ("4x8x1",)


def test_an_uncovered_shape_makes_a_warm_session_dirty(start: Start) -> None:
    """What the bundle lacks is compiled and saved, and joins what was there."""
    run(start, 4)

    second = run(start, 4, 6).report()
    third = run(start, 4, 6).report()

    assert second.misses["inductor"] == 1
    assert second.saved_generations
    assert third.misses == {}
    assert third.shapes == ("4x8x1", "6x8x1")


def test_a_dynamic_plan_covers_other_sizes_with_one_unit(start: Start) -> None:
    """A dynamic graph serves further sizes without a compile, and each label names its unit."""
    plan = Plan("cpu", dynamic=True)

    cold = run(start, 4, 6, plan=plan).report()
    warm = run(start, 6, 9, plan=plan).report()

    assert cold.misses["inductor"] == 1
    assert warm.misses == {}
    assert warm.shapes == ("4x8x1", "6x8x1", "9x8x1")


def test_a_bundle_that_hits_nothing_is_inert_and_says_so(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a covered call compiles all the same, one warning is logged, and no second is claimed as saved."""
    run(start, 4)
    monkeypatch.setattr(torch_private, "load_artifacts", lambda data: 2)  # says yes and does nothing

    with caplog.at_level(logging.WARNING, logger="cachekit"):
        report = run(start, 4).report()

    assert report.inert
    assert report.effective is False
    assert report.saved_s == 0.0
    assert len([record for record in caplog.records if "got no hit" in record.getMessage()]) == 1


def test_what_a_session_finds_of_its_own_saves_nothing(start: Start) -> None:
    """Compiled again after a reset of Dynamo: torch hits what this session made, and no bundle was installed."""
    module = Product()
    cold = start(module)
    for _ in range(3):
        torch._dynamo.reset()
        call(module, 4)

    report = cold.report()
    assert report.hits == {"inductor": 2, "aot_autograd": 2}
    assert (report.effective, report.cold_s, report.saved_s) == (None, 0.0, 0.0)


def test_a_bundle_saves_what_it_saves_once(start: Start) -> None:
    """However often Dynamo is reset, the units of a bundle cost their cold seconds once."""
    run(start, 4)
    module = Product()
    warm = start(module)
    call(module, 4)
    first = warm.report()
    for _ in range(3):
        torch._dynamo.reset()
        call(module, 4)

    report = warm.report()
    assert first.cold_s > 0
    assert (report.cold_s, report.saved_s, report.effective) == (first.cold_s, first.saved_s, first.effective)
    assert report.hits["inductor"] == 4


# --- why something was compiled ------------------------------------------------------------------------------------


def test_a_hit_on_one_s_own_compile_hides_no_reason(start: Start) -> None:
    """That there was no bundle stays true when the session finds again what it made."""
    module = Product()
    cold = start(module)
    for _ in range(2):
        torch._dynamo.reset()
        call(module, 4)

    assert cold.report().hits
    told = [reason for reason in cold.report().reasons if "bundle" in reason]
    assert told == ["no bundle for this fingerprint; no other fingerprint is stored"]


def test_sizes_that_the_bundle_lacks_are_named(start: Start) -> None:
    """By their label where there is one, else by the sizes of the call; what is covered is not named."""
    run(start, 4)
    module = Product()
    warm = start(module, plan=Plan("cpu"))
    call(module, 4)
    assert warm.report().reasons == ()
    call(module, 5)

    assert warm.report().misses
    assert warm.report().reasons == ("the installed bundle does not cover module(5x8)",)


def test_a_call_that_failed_is_named_too(start: Start) -> None:
    """What it compiled was not covered either."""
    run(start, 4)
    module = Product()
    warm = start(module)
    with pytest.raises(CancelledError):
        call(module, 5, cancel)

    assert warm.report().misses
    assert warm.report().reasons == ("the installed bundle does not cover a call that failed",)


def test_a_change_while_attached_is_told(start: Start) -> None:
    """From which fingerprint to which, and what differs; the one with a bundle is not blamed."""
    run(start, 4)
    module, now = Product(), [FINGERPRINT]
    warm = start(module, identify=lambda: now[0])
    call(module, 4)
    now[0] = OTHER
    call(module, 5)
    torch._dynamo.reset()
    call(module, 5)

    (reason,) = warm.report().reasons
    assert reason.startswith(f"the fingerprint changed from {FINGERPRINT.id[:12]} to {OTHER.id[:12]} while")
    assert 'pipeline.family: "toy" / "other"' in reason


def test_many_changes_are_bounded(start: Start) -> None:
    """An engine that changes its pipeline before each call gets some of them told, and the rest counted."""
    module, number = Product(), [0]

    def identify() -> Fingerprint:
        return Fingerprint.of({**FINGERPRINT.components, "pipeline": {"family": str(number[0])}})

    made = start(module, identify=identify)
    for number[0] in range(8):
        torch._dynamo.reset()
        call(module, 4)

    reasons = made.report().reasons
    assert len(reasons) == 7
    assert reasons[-1] == "no bundle for 2 earlier fingerprints of this session"


def test_a_bundle_that_is_refused_is_not_called_absent(start: Start, tmp_path: Path) -> None:
    """One reason, not two that contradict each other."""
    run(start, 4)
    for key in (tmp_path / "cachekit" / "keys" / "trusted").iterdir():
        key.unlink()
    (tmp_path / "cachekit" / "keys" / "signing.pem").unlink()
    module = Product()
    cold = start(module, mode="readonly")
    call(module, 4)

    (reason,) = cold.report().reasons
    assert reason.startswith("bundle not used: untrusted")


# --- whose it is ---------------------------------------------------------------------------------------------------


def test_two_sessions_of_one_process_do_not_mix(start: Start) -> None:
    """Two instances of a class, which Dynamo's memory would serve from one compile, each record their own."""
    one, two = Product(), Product()
    first = start(one)
    second = start(two, identify=lambda: OTHER, alone=False)

    call(one, 4)
    call(two, 4)

    assert first.report().misses == {"inductor": 1, "aot_autograd": 1}
    assert second.report().hits["inductor"] == 1
    assert second.save(wait=True)
    assert second.report().generation == 1
    first.close()
    second.close()
    for identify in (lambda: FINGERPRINT, lambda: OTHER):
        assert run(start, 4, identify=identify).report().misses == {}


def test_sessions_on_two_threads_do_not_mix(start: Start) -> None:
    """Compiling at once, each bundle is complete when it is replayed alone."""
    modules = Product(), Product()
    sessions = [
        start(modules[0]),
        start(modules[1], identify=lambda: OTHER, alone=False),
    ]
    together = threading.Barrier(2)

    def work(index: int) -> None:
        together.wait()
        for rows in (4, 5 + index):
            call(modules[index], rows)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for made in sessions:
        made.close()

    assert run(start, 4, 5).report().misses == {}
    assert run(start, 4, 6, identify=lambda: OTHER).report().misses == {}


def test_a_changed_pipeline_is_filed_under_its_own_fingerprint(start: Start) -> None:
    """Who it is is asked when it compiles: what came after a change goes to the changed pipeline's bundle."""
    current = [FINGERPRINT]
    module = Product()
    with start(module, identify=lambda: current[0]) as made:
        call(module, 4)
        current[0] = OTHER
        call(module, 6)
        assert made.fingerprint == OTHER

    assert run(start, 6, identify=lambda: OTHER).report().misses == {}
    assert run(start, 4).report().misses == {}
    assert run(start, 6, mode="readonly").report().misses["inductor"] == 1


# --- modes ---------------------------------------------------------------------------------------------------------


def test_strict_mode_runs_what_is_covered_and_raises_on_the_rest(start: Start) -> None:
    """The error is ours, not torch's wrapping, and says why; covered calls go on after it."""
    run(start, 4)
    module = Product()
    strict = start(module, mode="strict")

    call(module, 4)
    with pytest.raises(StrictMissError, match="CACHEKIT_MODE=strict"):
        call(module, 6)
    call(module, 4)

    assert not strict.save(wait=True)
    assert strict.report().misses == {}


def test_readonly_mode_never_saves(start: Start, tmp_path: Path) -> None:
    """Nothing is written to the store, not even on demand or at the end."""
    module = Product()
    with start(module, mode="readonly") as readonly:
        call(module, 4)
        assert not readonly.save(wait=True)

    assert readonly.report().misses["inductor"] == 1
    assert not list((tmp_path / "cachekit").rglob("head.json"))


def test_saving_never_means_only_on_demand(start: Start) -> None:
    """With ``save=never`` an engine that asks for a save gets one."""
    module = Product()
    made = start(module, save="never")
    call(module, 4)
    assert made.state == "dirty"

    assert made.save(wait=True)

    assert made.report().saved_generations == (1,)


# --- labels --------------------------------------------------------------------------------------------------------


def test_a_label_names_what_ran_since_the_last(start: Start) -> None:
    """It is False where nothing waits for a name, and where it is no shape, with the reason."""
    module = Product()
    made = start(module)

    assert not made.register_shape(4, 8, 1)
    call(module, 4)
    assert not made.register_shape(0, 8, 1)
    assert made.register_shape(4, 8, 1, frames=17)
    assert not made.register_shape(5, 8, 1)

    assert made.report().shapes == ("4x8x1,frames=17",)
    assert any("width must be" in reason for reason in made.report().reasons)


def test_shapes_come_from_the_hooks_where_they_can_tell(start: Start) -> None:
    """A labeller gets the denoiser's name and the call's arguments, once per generation and call."""
    told: list[tuple[str, tuple[int, ...], list[str]]] = []

    def label(name: str, args: Any, kwargs: Any) -> Shape:
        told.append((name, tuple(args[0].shape), list(kwargs)))
        return Shape(args[0].shape[0], 8, 1)

    module = Product()
    made = start(module, label=label)
    made.generation_started()
    for _ in range(3):
        call(module, 4)
    assert made.report().shapes == ()
    made.generation_finished()

    assert told == [("module", (4, 8), [])]
    assert made.report().shapes == ("4x8x1",)


def test_a_failed_call_registers_no_shape_and_keeps_what_it_compiled(start: Start) -> None:
    """The engine's own exception passes unchanged."""
    module = Product()
    with start(module) as made:
        with pytest.raises(CancelledError):
            call(module, 4, cancel)
        assert not made.register_shape(4, 8, 1)
        assert made.report().shapes == ()

    assert made.report().saved_generations == (1,)
    module = Product()
    again = start(module)
    with pytest.raises(CancelledError):
        call(module, 4, cancel)
    assert again.report().misses == {}


def test_what_a_cancelled_call_compiled_is_covered_by_the_next_one(start: Start) -> None:
    """The first generation is cancelled often, because it is slow: the one after it compiles nothing and counts."""
    module = Product()
    made = start(module, save="close")
    stop = [cancel]

    def sometimes() -> None:
        if stop:
            stop.pop()()

    with pytest.raises(CancelledError):
        call(module, 4, sometimes)
    call(module, 4, sometimes)
    assert made.register_shape(4, 8, 1)
    made.close()

    bundle = made.profile.bundle if made.profile else None
    assert bundle is not None
    (row,) = bundle.coverage.shapes
    (unit,) = bundle.coverage.units
    assert row.unit_ids == (unit.id,)
    assert {e.identity.id for e in bundle.entries if e.kind == "inductor"} <= set(unit.needs)
    assert unit.seconds > 0


def test_what_was_compiled_outside_of_an_observed_call_is_covered_by_one_that_runs_it(start: Start) -> None:
    """A part that the engine calls by itself first is compiled all the same; the first observed call makes the unit."""
    module = Product()
    made = start(module, save="close")
    observed = torch_private.compiled_call(module)
    torch.nn.Module.compile(module, backend=made.backend(), dynamic=False)
    bare = torch_private.compiled_call(module)
    assert bare is not None
    with torch.no_grad():
        bare(torch.ones(4, 8))
    torch_private.set_compiled_call(module, made.observed("module", bare))
    call(module, 4)
    torch_private.set_compiled_call(module, observed)

    assert made.register_shape(4, 8, 1)
    made.close()

    assert made.report().shapes == ("4x8x1",)
    assert made.report().misses["inductor"] == 1


# --- nothing of ours reaches the engine ----------------------------------------------------------------------------


def fail(*args: Any, **kwargs: Any) -> Any:
    """Fail in a way that nobody foresaw."""
    raise ZeroDivisionError("unforeseen")


def test_a_session_that_cannot_bind_changes_nothing(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """It is disabled with the reason, the engine compiles into its own folder, and the call runs."""
    theirs = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    module = Product()

    made = start(module, identify=fail)

    assert made.state == "disabled"
    assert made.report().reasons == ("ZeroDivisionError: unforeseen",)
    assert str(made.report()) == "disabled: ZeroDivisionError: unforeseen"
    assert "cachekit is disabled for this pipeline: ZeroDivisionError: unforeseen" in caplog.text
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == theirs
    assert call(module, 4).sum() == 128
    assert list(Path(theirs).rglob("*.py"))


def test_a_folder_that_cannot_be_used_is_a_cold_start(start: Start, tmp_path: Path) -> None:
    """The compile goes to a private folder elsewhere; the reason names path and errno."""
    (tmp_path / "file").touch()
    module = Product()

    made = start(module, dir=tmp_path / "file")

    assert made.state == "recording"
    assert str(tmp_path / "file") in made.report().reasons[0]
    assert call(module, 4).sum() == 128


def test_a_bundle_that_cannot_be_used_is_a_cold_start(start: Start, tmp_path: Path) -> None:
    """The session lives, says why nothing was installed, and saves over the damage."""
    run(start, 4)
    next((tmp_path / "cachekit").rglob("head.json")).write_bytes(b"{")
    module = Product()

    made = start(module)

    assert made.state == "recording"
    assert made.report().reasons[0].startswith("bundle not used: corrupt")
    call(module, 4)
    assert made.save(wait=True)
    made.close()
    assert run(start, 4).report().misses == {}


def test_a_label_that_fails_is_a_shape_without_a_name(start: Start) -> None:
    """Labels are for people: without one the call is recorded all the same, and the report says why."""
    module = Product()
    made = start(module, label=fail)

    assert call(module, 4).sum() == 128

    assert made.state == "dirty"
    assert any("no label for a shape: ZeroDivisionError" in reason for reason in made.report().reasons)


@pytest.mark.parametrize("broken", ["identify", "absorb"])
def test_what_fails_in_a_call_disables_and_the_call_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Whoever of ours fails, before, while or after the compile, the engine gets its result."""
    module = Product()
    asked = iter((FINGERPRINT,))
    made = start(
        module,
        identify=(lambda: next(asked, None) or fail()) if broken == "identify" else lambda: FINGERPRINT,
    )
    if broken == "absorb":
        monkeypatch.setattr("cachekit.runtime.profile.guards_of", fail)

    assert call(module, 4).sum() == 128

    assert made.state == "disabled"
    assert "ZeroDivisionError: unforeseen" in made.report().reasons
    assert call(module, 6).sum() == 192


def test_arguments_that_cannot_be_looked_at_do_not_matter(start: Start) -> None:
    """A mapping that raises when it is read is the engine's business."""

    class Odd(dict[str, int]):
        def items(self) -> Any:
            return fail()

    seen: list[Any] = []
    made = start(Product())
    observed = made.observed("module", seen.append)

    observed(Odd())

    assert len(seen) == 1
    assert made.state == "disabled"


def test_a_save_that_fails_is_told_and_tried_again(start: Start, tmp_path: Path) -> None:
    """Nothing that was compiled is lost with it."""
    module = Product()
    made = start(module, save="close")
    call(module, 4)
    store = tmp_path / "cachekit" / "store"
    store.touch()

    assert not made.save(wait=True)
    assert made.state == "dirty"
    assert any(reason.startswith("not saved: StoreError") for reason in made.report().reasons)

    store.unlink()
    assert made.save(wait=True)
    assert made.state == "clean"
    assert made.report().saved_generations == (1,)


def test_an_error_of_the_compiler_is_the_engine_s(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch raises while compiling passes through, and the session lives on."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError("torch's own")

    module = Product()
    made = start(module)
    with monkeypatch.context() as patch:
        patch.setattr(torch_private, "compile_inductor", broken)
        with pytest.raises(Exception, match="torch's own"):
            call(module, 4)

    assert made.state == "recording"
    torch._dynamo.reset()
    assert call(module, 4).sum() == 128


# --- the end -------------------------------------------------------------------------------------------------------


def test_closing_saves_what_is_unsaved_and_puts_everything_back(start: Start) -> None:
    """With ``save=close`` the end is the time to save; closing twice is closing once."""
    theirs = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    module = Product()
    made = start(module, save="close")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != theirs
    call(module, 4)
    assert made.report().saved_generations == ()

    made.close()
    made.close()

    assert made.state == "closed"
    assert made.report().saved_generations == (1,)
    assert torch_private.compiled_call(module) is None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == theirs


def test_after_closing_nothing_is_done(start: Start) -> None:
    """A call that still goes through an observed function runs; labels and saves are refused."""
    seen: list[int] = []
    made = start(Product())
    observed = made.observed("module", seen.append)
    made.close()

    observed(1)

    assert seen == [1]
    assert not made.save(wait=True)
    assert not made.register_shape(4, 8, 1)
    made.disable("too late")
    assert made.state == "closed"


def test_a_session_says_who_it_is(start: Start) -> None:
    """State and fingerprint."""
    assert repr(start(Product())) == f"<cachekit.Session recording {FINGERPRINT.id[:12]}>"
