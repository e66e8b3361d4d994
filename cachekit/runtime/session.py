"""A session: one pipeline, from attach to close.

States: ``binding`` → ``recording`` (nothing kept) or ``warm`` (a bundle installed) → ``clean`` ⇄ ``dirty`` →
``closed``; ``disabled`` from anywhere, with a reason. The state is never kept, it follows from what there is: nothing
can set it wrong, from whatever thread. Once bound nothing here raises into the engine, except StrictMissError in
strict mode.

This module decides what happens when. What is observed, found, filed, compared and written is decided below it:
``calls`` and ``profiles``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from cachekit.bundle import Shape
from cachekit.errors import CachekitError, StrictMissError
from cachekit.identity import Fingerprint, Plan
from cachekit.logs import Log, said
from cachekit.runtime import counters, endings, places, proof, recorder, switches
from cachekit.runtime.backend import Call, Graph, SessionBackend
from cachekit.runtime.calls import Calls, Labeller, unnamed
from cachekit.runtime.facts import Facts
from cachekit.runtime.forks import renew_in_child
from cachekit.runtime.generations import Generations
from cachekit.runtime.library import Library
from cachekit.runtime.process import shared
from cachekit.runtime.profile import Profile
from cachekit.runtime.profiles import Profiles
from cachekit.runtime.report import Report
from cachekit.runtime.saver import Saver
from cachekit.runtime.story import Story
from cachekit.settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Self

log = Log("cachekit")

State = Literal["binding", "recording", "warm", "clean", "dirty", "closed", "disabled"]


class Session:
    """Made by :func:`cachekit.attach`; a context manager. Safe to use from several threads.

    ``state`` is one of ``binding``, ``recording``, ``warm``, ``clean``, ``dirty``, ``closed``, ``disabled``.
    """

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        *,
        identify: Callable[[], Fingerprint],
        cpp_requirements: Callable[[], Mapping[str, str]],
        label: Labeller | None = None,
    ) -> None:
        self.settings = settings
        self.plan = plan
        self.recording = recorder.Recording()
        self.facts = Facts()
        self.story = Story()
        self.profile: Profile | None = None
        self.label: Labeller = label or unnamed
        self._identify = identify
        self._cpp_requirements = cpp_requirements
        self._pid = os.getpid()
        # Each is set once and never taken back.
        self._bound = self._ran = self._disabled = self._closed = False
        self._undo = endings.Undo()
        self._lock = threading.RLock()
        self._meter = counters.Meter(self.facts.tally)
        self._saver = Saver(self._save_now, name="cachekit-save")
        self._profiles: Profiles | None = None
        self._generations = Generations()
        self._calls = Calls(self, self._generations)
        renew_in_child(self)

    @property
    def state(self) -> State:
        """Where the session stands."""
        if self._closed or self._disabled:
            return "closed" if self._closed else "disabled"
        if self._profiles is None or not self._bound:
            return "binding"
        if not self._ran:
            return "warm" if self.facts.installed else "recording"
        return "dirty" if self._profiles.dirty or self._profiles.saving else "clean"

    # --- binding ---------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Find, verify, install. Never raises: on any failure the session is disabled and says why."""
        with self._shielded():
            folder = shared.enter(*places.candidates(self.settings.process_root))
            if folder.passed_over:
                self.facts.note(f"{'; '.join(folder.passed_over)}; torch compiles below {folder.path.parent}")
            # Also if the engine drops the pipeline without closing.
            release = weakref.finalize(self, _leave, self._pid)
            release.atexit = False
            self.undo(release)
            library = Library(self.settings)
            self.undo(library.close)
            self._profiles = Profiles(
                library, folder, self.facts, self.story, offer_all=self.settings.mode == "on"
            )
            for off in switches.less_is_kept(dict(self.plan.options)):
                self.facts.note(off)
            self.profile = self._profile_now()
            if self.plan.scope == "caller":
                self.facts.note("the engine compiles by itself: attribution holds for an only session")
            endings.close_at_exit(self)
            self._bound = True
        if not self.live():
            self._undo.run()  # the engine compiles into its own folder, as it would have without us

    def disable(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Go on without a cache, compiled as planned; ``level`` is the log's."""
        if not self._disabled and not self._closed:
            self._disabled = True
            self.facts.note(reason)
            self.story.disabled(reason, level=level)

    def undo(self, function: Callable[..., Any], *args: Any) -> None:
        """Have a change put back on close; the last one first."""
        self._undo.add(function, *args)

    @contextlib.contextmanager
    def _shielded(self) -> Iterator[None]:
        """A cache must never break the engine: whatever fails in here disables the session instead."""
        try:
            yield
        except Exception as exc:
            self.failed(exc)

    def failed(self, error: Exception) -> None:
        """Something of ours failed in the engine's call path."""
        log.debug("cachekit failed", exc_info=error)
        self.disable(said(error))

    def relocated(self, reason: str) -> None:
        """The private folder was replaced by another one: install there again what was installed."""
        self.facts.note(f"the private folder was replaced: {reason}")
        self.story.trouble("moved", "cachekit goes on in another private folder: %s", reason)
        if self.live() and self._profiles is not None:
            with self._shielded():
                self._profiles.install_again(self._cpp_requirements())

    def live(self) -> bool:
        """Whether the session does anything: it is neither disabled nor closed, and this is no forked child."""
        return not (self._disabled or self._closed) and os.getpid() == self._pid

    def _profile_now(self) -> Profile:
        """Who the pipeline is now."""
        assert self._profiles is not None
        return self._profiles.of(self._identify(), self._cpp_requirements())

    # --- compiling: called by the backend, on the generating thread -----------------------------------------------

    def backend(self) -> SessionBackend:
        """A compiler backend whose code no other session is served."""
        return SessionBackend(
            self, mode=self.plan.mode, options=dict(self.plan.options), dynamic=self.plan.dynamic
        )

    def before_compile(self) -> Profile | None:
        """Who the pipeline is now: a changed one (adapter, processor, dtype) is another profile from here on."""
        if not self.live():
            return None
        profile = None
        with self._shielded():
            if self.profile is not None:
                self._calls.absorb(self.profile, self.current_call())
            self._meter.begin(recorder.depth())
            self.profile = profile = self._profile_now()
        return profile

    def after_compile(self, graph: Graph) -> None:
        """File what one graph looked up or made."""
        with self._shielded():
            graph.needs = graph.profile.absorb(self.recording.take())
            graph.outcome = self._meter.end() | self.facts.count(graph.needs)
            call = self.current_call()
            if call is not None:
                call.compiled.append(graph)
            else:
                graph.orphaned = True
                self._calls.unfinished(graph, "a call that was not observed")

    def current_call(self) -> Call | None:
        """The observed forward that this thread is in."""
        return self._calls.current

    def refuse_compile(self) -> Callable[[], None] | None:
        """What raises where something would be compiled; in strict mode only."""
        return self._raise_strict if self.settings.mode == "strict" and not self._closed else None

    @property
    def _has_installed(self) -> bool:
        return bool(self.facts.installed) and self.profile is not None and self.profile.found

    def _raise_strict(self) -> None:
        why = ["the installed bundle does not cover it"] if self._has_installed else self.report().reasons
        raise StrictMissError(f"CACHEKIT_MODE=strict, and this call would compile: {'; '.join(why)}")

    def observed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call`` with what it compiles attributed and its shape registered; ``name`` names the denoiser."""
        return self._calls.observed(name, call)

    # --- generations -----------------------------------------------------------------------------------------------

    def generation_started(self) -> None:
        """A generation begins on this thread: what an earlier one left unfinished registers no shape."""
        self._generations.start()

    def generation_finished(self) -> None:
        """The generation on this thread ended well: register its shapes, and save if something is new."""
        if self.live():
            with self._shielded():
                self._generations.finish()
                self._settle()

    def register_shape(
        self, width: int, height: int, batch: int, **variant: str | float | bool | None
    ) -> bool:
        """Name the shape of everything that ran and has no name yet; False if there is nothing to name.

        Args:
            width, height: in pixels, or in whatever the engine's users call a size.
            batch: images a call.
            variant: what else tells shapes apart, e.g. ``frames=17``.
        """
        if not self.live():
            return False
        try:
            shape = Shape.of(width, height, batch, **variant)
        except CachekitError as exc:
            self.facts.note(f"shape not registered: {exc}")
            return False
        return self._generations.label(shape)

    def _settle(self) -> None:
        """After a generation: a save where the mode wants one, and one line in the log for the first."""
        with self._lock:
            first, self._ran = not self._ran, True
        dirty = self._profiles is not None and self._profiles.dirty
        if (first or dirty) and self._saves and self.settings.save == "auto":
            self._saver.request()
        if first:
            self.story.started(self.report)
            if self.facts.inert:
                told = "a bundle was installed, what it covers ran, and nothing of it was hit: %s"
                self.story.trouble("inert", f"cachekit: {told}", "; ".join(self.report().reasons))

    # --- saving ----------------------------------------------------------------------------------------------------

    @property
    def _saves(self) -> bool:
        return self.settings.mode in ("auto", "on") and self.settings.save != "never"

    def save(self, *, wait: bool | float = False) -> bool:
        """Save what is new, on a background thread.

        Args:
            wait: True waits until it is done, a number at most so many seconds.

        Returns:
            With ``wait``, whether all that was new is saved now: False if it took longer or failed, and
            ``report()`` says why. Without, whether a save was asked for. False in a mode that does not save.
        """
        if not self.live() or self.settings.mode not in ("auto", "on"):
            return False
        ticket = self._saver.request()
        if wait is False:
            return True
        ended = self._saver.wait(ticket, None if wait is True else float(wait))
        return ended and self._saver.succeeded(ticket)

    def _save_now(self) -> bool:
        """On the saver's thread; False if something could not be saved."""
        return self._profiles is None or self._profiles.publish()

    def report(self) -> Report:
        """What was found, hit and saved so far, see :class:`~cachekit.runtime.report.Report`."""
        mode = self.settings.mode
        return proof.report(self.facts, self.profile, self._profiles, state=self.state, mode=mode)

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Who the pipeline was when it last compiled; None if binding failed."""
        return self.profile.fingerprint if self.profile else None

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self, *, timeout: float | None = endings.EXIT_TIMEOUT_S) -> None:
        """Last save (waited for, at most ``timeout`` seconds), then everything the session changed is put back.

        May be called from any thread, signal handler or finalizer, and again: whoever comes second waits for the save
        as well. Never raises; an interrupt while it waits passes, and everything is put back all the same. The pipeline
        is uncompiled again, as it was before ``attach``. A save that takes longer goes on in the background, and the
        interpreter's exit waits for it.
        """
        if os.getpid() != self._pid:
            return
        try:
            with self._shielded():
                self._last_save(timeout)
        finally:
            self._put_back()

    def _last_save(self, timeout: float | None) -> None:
        if self._profiles is None:
            return
        if self.live() and self._saves and self._profiles.unsaved:
            self._saver.request()
        if self._profiles.held_here:
            return  # this cut into code that the save needs to go on: the exit waits for it
        if not self._saver.wait(timeout=timeout):
            reason = f"the last save was not done after {timeout} s"
            self.facts.note(reason)
            self.story.trouble("unsaved", "cachekit: %s", reason)

    def _put_back(self) -> None:
        ends, self._closed = self._bound and not self._closed, True
        for error in self._undo.run():
            log.debug("cachekit could not put something back", exc_info=error)
            self.facts.note(f"not put back: {said(error)}")
        self._identify = _nobody
        self.label = unnamed  # both held the pipeline
        if ends:
            self.story.closed(self.report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        fingerprint = self.profile.fingerprint.id[:12] if self.profile else "unbound"
        return f"<cachekit.Session {self.state} {fingerprint}>"


def _leave(pid: int) -> None:
    if os.getpid() == pid:  # what a forked child drops is its parent's
        shared.leave()


def _nobody() -> Fingerprint:
    raise CachekitError("the session is closed")
