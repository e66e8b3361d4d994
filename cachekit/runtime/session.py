"""A session: one pipeline, from attach to close.

States: ``binding`` → ``recording`` (nothing kept) or ``warm`` (a bundle installed) → ``clean`` ⇄ ``dirty`` →
``closed``; ``disabled`` from anywhere, with a reason. Once bound nothing here raises into the engine, except
StrictMissError in strict mode.

This module decides what happens when. What is found, filed, compared and written is decided below it: ``library``,
``installer``, ``profile``, ``units``.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cachekit.bundle import Bundle, Shape
from cachekit.errors import CachekitError, StrictMissError
from cachekit.identity import Fingerprint, Plan
from cachekit.runtime import counters, recorder
from cachekit.runtime.backend import Call, Graph, SessionBackend
from cachekit.runtime.facts import Facts
from cachekit.runtime.generations import Generations
from cachekit.runtime.installer import install
from cachekit.runtime.library import Library
from cachekit.runtime.process import PrivateFolder, shared
from cachekit.runtime.profile import Pending, Profile
from cachekit.runtime.report import Report
from cachekit.runtime.saver import Saver
from cachekit.runtime.signature import call_key, call_signature
from cachekit.runtime.units import dynamic_units, static_unit
from cachekit.settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("cachekit")

State = Literal["binding", "recording", "warm", "clean", "dirty", "closed", "disabled"]
Labeller = Callable[[str, Sequence[Any], Mapping[str, Any]], "Shape | None"]
EXIT_TIMEOUT_S = 60.0
"""How long the interpreter's exit waits for a save in progress."""


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
        self.state: State = "binding"
        self.recording = recorder.Recording()
        self._identify = identify
        self._cpp_requirements = cpp_requirements
        self._label = label or (lambda name, args, kwargs: None)
        self._pid = os.getpid()
        self._undo = contextlib.ExitStack()
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._facts = Facts()
        self._saver = Saver(self._save_now, name="cachekit-save")
        self._folder: PrivateFolder | None = None
        self._library: Library | None = None
        self._profiles: dict[str, Profile] = {}
        self._profile: Profile | None = None
        self._nearest: dict[str, str] = {}
        self._generations = Generations()
        self._noted: set[str] = set()

    # --- binding ---------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Find, verify, install. Never raises: on any failure the session is disabled and says why."""
        with self._shielded():
            elsewhere = Path(tempfile.gettempdir()) / f"cachekit-{os.getuid()}"
            self._folder = shared.enter(self.settings.process_root, elsewhere)
            # Also if the engine drops the pipeline without closing.
            release = weakref.finalize(self, _leave, self._pid)
            release.atexit = False
            self._undo.callback(release)
            self._library = Library(self.settings)
            self._profile = self._profile_of(self._identify())
            if self.plan.scope == "caller":
                self._facts.note(
                    "the engine compiles by itself: attribution holds while this is the only session"
                )
            self.state = "warm" if self._facts.installed else "recording"
            _close_at_exit(self)
        if not self._live():
            self._undo.close()  # the engine compiles into its own folder, as it would have without us

    def disable(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Go on without a cache, compiled as planned; ``level`` is the log's."""
        if self.state not in ("disabled", "closed"):
            self.state = "disabled"
            self._facts.note(reason)
            log.log(level, "cachekit is disabled for this pipeline: %s", reason)

    def undo(self, function: Callable[..., Any], *args: Any) -> None:
        """Have a change put back on close; the last one first."""
        self._undo.callback(function, *args)

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
        self.disable(f"{type(error).__name__}: {error}")

    def relocated(self, reason: str) -> None:
        """The private folder was replaced by another one: install there again what was installed."""
        self._facts.note(f"the private folder was replaced: {reason}")
        log.warning("cachekit goes on in another private folder: %s", reason)
        with self._shielded():
            assert self._library is not None
            assert self._folder is not None
            for profile in list(self._profiles.values()) if self._live() else []:
                if profile.bundle is not None:
                    install(self._library.store, profile.bundle, self._folder, self._cpp_requirements())

    def _live(self) -> bool:
        return self.state not in ("disabled", "closed") and os.getpid() == self._pid

    def _profile_of(self, fingerprint: Fingerprint) -> Profile:
        """The profile of a fingerprint; its bundle is found and installed the first time."""
        with self._lock:
            if fingerprint.id not in self._profiles:
                started = time.perf_counter()
                host = self._cpp_requirements()
                bundle, damaged = self._install(fingerprint, host)
                offered = self.settings.mode == "on"  # a baker offers again what it was given
                self._profiles[fingerprint.id] = Profile(
                    fingerprint, host, bundle, damaged=damaged, offer_all=offered
                )
                self._facts.load_s += time.perf_counter() - started
            return self._profiles[fingerprint.id]

    def _install(self, fingerprint: Fingerprint, host: Mapping[str, str]) -> tuple[Bundle | None, set[str]]:
        """The bundle that was installed, if any, and the identities in it that are damaged."""
        assert self._library is not None
        assert self._folder is not None
        try:
            bundle = self._library.find(fingerprint)
            if bundle is None:
                return None, set()
            done = install(self._library.store, bundle, self._folder, host)
        except CachekitError as exc:
            self._facts.note(f"bundle not used: {exc.diagnostics()}")
            return None, set()
        self._facts.add_installed(done)
        return bundle, done.damaged

    # --- compiling: called by the backend, on the generating thread -----------------------------------------------

    def backend(self) -> SessionBackend:
        """A compiler backend whose code no other session is served."""
        return SessionBackend(
            self, mode=self.plan.mode, options=dict(self.plan.options), dynamic=self.plan.dynamic
        )

    def before_compile(self) -> Profile | None:
        """Who the pipeline is now: a changed one (adapter, processor, dtype) is another profile from here on."""
        if not self._live():
            return None
        profile = None
        with self._shielded():
            if self._profile is not None:
                self._absorb(self._profile, self.current_call())
            self._thread.before = counters.snapshot()
            self._profile = profile = self._profile_of(self._identify())
        return profile

    def _absorb(self, profile: Profile, call: Call | None) -> None:
        """File what was looked up or made while compiled graphs ran: autotuning, for the most part."""
        needs = profile.absorb(self.recording.take())
        self._facts.count(needs)
        if call is not None:
            call.extra.add(needs)

    def after_compile(self, graph: Graph) -> None:
        """File what one graph looked up or made."""
        with self._shielded():
            graph.needs = graph.profile.absorb(self.recording.take())
            self._facts.tally.add(self._thread.before, counters.snapshot())
            self._facts.count(graph.needs)
            call = self.current_call()
            if call is not None:
                call.compiled.append(graph)

    def current_call(self) -> Call | None:
        """The observed forward that this thread is in."""
        calls = getattr(self._thread, "calls", None)
        return calls[-1] if calls else None

    def refuse_compile(self) -> Callable[[], None] | None:
        """What raises where something would be compiled; in strict mode only."""
        return self._raise_strict if self.settings.mode == "strict" and self.state != "closed" else None

    def _raise_strict(self) -> None:
        why = (
            "the installed bundle does not cover it" if self._facts.installed else "; ".join(self._reasons())
        )
        raise StrictMissError(f"CACHEKIT_MODE=strict, and this call would compile: {why}")

    # --- calls of the denoiser -------------------------------------------------------------------------------------

    def observed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call`` with what it compiles attributed and its shape registered; ``name`` names the denoiser."""
        import torch

        tensor, is_compiling = torch.Tensor, torch.compiler.is_compiling

        def run(*args: Any, **kwargs: Any) -> Any:
            context = None
            if not is_compiling() and self._live():
                with self._shielded():
                    context = self._context((name, call_key(args, kwargs, tensor)))
            if context is None:
                return call(*args, **kwargs)
            result = self._called(context, call, args, kwargs)
            with self._shielded():
                if context.ran is not None or context.compiled or self.recording.waiting:
                    self._register(context, lambda: call_signature(args, kwargs, tensor, module=name))
                if self._generations.is_new(context.key):
                    alone = self._generations.add(context.key, self._shape(name, args, kwargs))
                    if alone:
                        self.generation_finished()
            return result

        return run

    def _shape(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shape | None:
        try:
            return self._label(name, args, kwargs)
        except Exception as exc:  # a label is for people: without one the call is covered all the same
            self._facts.note(f"no label for a shape: {type(exc).__name__}: {exc}")
            return None

    def _context(self, key: Hashable) -> Call:
        """What to watch in a call: all of it the first time its key is seen."""
        if self._generations.knows(key):
            return Call(key)
        # Where the engine compiles by itself, no backend of ours counts.
        return Call(key, ran=[], before=counters.snapshot() if self.plan.scope == "caller" else None)

    def _called(self, context: Call, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        calls = self._thread.__dict__.setdefault("calls", [])
        calls.append(context)
        started = time.perf_counter()
        try:
            with recorder.scope(self.recording):
                return call(*args, **kwargs)
        except BaseException as exc:
            self._abandon(context)
            strict = _strict_cause(exc)
            if strict is None or strict is exc:
                raise
            raise strict from None
        finally:
            context.seconds = time.perf_counter() - started
            calls.pop()

    def _abandon(self, context: Call) -> None:
        """A call failed or was cancelled: it registers no shape, but what it compiled is kept."""
        with self._shielded():
            profile = context.compiled[-1].profile if context.compiled else self._profile
            if profile is not None:
                self._absorb(profile, None)
            self._generations.abandon()

    def _register(self, context: Call, signature: Callable[[], str]) -> None:
        """Find or make the units of a call that compiled, or of the first call with its signature."""
        graphs = context.compiled or context.ran or []
        profile = graphs[-1].profile if graphs else self._profile
        assert profile is not None  # bound, or the session would not be live
        self._absorb(profile, context)
        if context.before is not None:
            self._facts.tally.add(context.before, counters.snapshot())
        if context.compiled or context.extra.identities:
            units = self._units(profile, context, signature)
        else:
            units = tuple(sorted({graph.unit_id for graph in graphs if graph.unit_id}))
            if not graphs and self.plan.scope != "caller":
                self._facts.note("torch compiled nothing for this call")
        self._generations.learn(context.key, (profile, units))

    def _units(self, profile: Profile, call: Call, signature: Callable[[], str]) -> tuple[str, ...]:
        before = profile.known_units()
        if call.compiled and self.plan.dynamic is not False:
            made = dynamic_units(profile, call.compiled, call.extra, call.seconds)
        else:
            made = [static_unit(call.compiled, call.extra, call.seconds, signature())]
        for item in made:
            profile.add_unit(item.unit, item.kernels)
        for index, graph in enumerate(call.compiled):
            graph.unit_id = made[min(index, len(made) - 1)].unit.id
        units = tuple(sorted({item.unit.id for item in made}))
        covered = all(unit in before for unit in units)
        self._facts.add_call(call.seconds, [before[unit].seconds for unit in units] if covered else None)
        return units

    # --- generations -----------------------------------------------------------------------------------------------

    def generation_started(self) -> None:
        """A generation begins: what an earlier one left unfinished registers no shape."""
        self._generations.start()

    def generation_finished(self) -> None:
        """A generation ended well: register its shapes, and save if something is new."""
        if self._live():
            with self._shielded(), self._lock:
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
        if not self._live():
            return False
        try:
            shape = Shape.of(width, height, batch, **variant)
        except CachekitError as exc:
            self._facts.note(f"shape not registered: {exc}")
            return False
        return self._generations.label(shape)

    def _settle(self) -> None:
        """After a generation: dirty or clean, a save where the mode wants one, and one line in the log."""
        first = self.state in ("recording", "warm")
        dirty = self._is_dirty()
        self.state = "dirty" if dirty else "clean"
        if (dirty or first) and self._saves and self.settings.save == "auto":
            self._saver.request()
        if first:
            report = self.report()
            log.info("%s", report)
            if report.inert:
                log.warning("cachekit: %s", "; ".join(report.reasons))

    def _is_dirty(self) -> bool:
        return any(profile.dirty for profile in list(self._profiles.values()))

    # --- saving ----------------------------------------------------------------------------------------------------

    @property
    def _saves(self) -> bool:
        return self.settings.mode in ("auto", "on") and self.settings.save != "never"

    def save(self, *, wait: bool | float = False) -> bool:
        """Save what is new, on a background thread.

        Args:
            wait: True waits until it is done, a number at most so many seconds.

        Returns:
            Whether the save was started or, with ``wait``, ended in time; ``report()`` says what went wrong.
            False in a mode that does not save.
        """
        if not self._live() or self.settings.mode not in ("auto", "on"):
            return False
        ticket = self._saver.request()
        return True if wait is False else self._saver.wait(ticket, None if wait is True else float(wait))

    def _save_now(self) -> None:
        """On the saver's thread: publish what each profile has that its bundle lacks, and note warm starts."""
        for profile in list(self._profiles.values()):
            pending = profile.take()
            if pending:
                self._publish(profile, pending)
            elif profile.bundle is not None and profile.fingerprint.id not in self._noted:
                self._record("started", profile.bundle, saved_s=round(self.report().saved_s, 3))
            self._noted.add(profile.fingerprint.id)
        if self.state == "dirty" and not self._is_dirty():
            self.state = "clean"

    def _publish(self, profile: Profile, pending: Pending) -> None:
        assert self._library is not None
        assert self._folder is not None
        try:
            published = self._library.publish(profile.fingerprint, pending, self._folder)
        except Exception as exc:  # the session goes on, and what was not saved is kept for the next try
            profile.give_back(pending)
            self._facts.note(f"not saved: {type(exc).__name__}: {exc}")
            log.warning("cachekit could not save: %s", exc)
            return
        profile.adopt(published.bundle)
        if published.bytes_written:
            self._facts.saved.append(published.bundle.generation)
        self._record("saved", published.bundle, bytes=published.bytes_written, new=published.new_entries)

    def _record(self, event: str, bundle: Bundle, **data: Any) -> None:
        assert self._library is not None
        problem = self._library.record(event, bundle, **data)
        if problem:
            self._facts.note(problem)

    # --- proof -----------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """What was found, hit and saved so far, see :class:`~cachekit.runtime.report.Report`."""
        facts, profile = self._facts, self._profile
        return Report(
            state=self.state,
            mode=self.settings.mode,
            fingerprint=profile.fingerprint.id if profile else None,
            generation=profile.bundle.generation if profile and profile.bundle else None,
            installed=dict(facts.installed),
            skipped=dict(facts.skipped),
            hits=facts.hits,
            misses=dict(facts.tally.misses),
            bypasses=dict(facts.tally.bypasses),
            load_s=facts.load_s,
            first_calls_s=facts.calls_s,
            covered_calls_s=facts.warm_calls_s,
            cold_s=facts.cold_s or 0.0,
            effective=facts.effective,
            inert=facts.inert,
            shapes=tuple(shape.label for shape in profile.shapes()) if profile else (),
            saved_generations=tuple(facts.saved),
            reasons=tuple(self._reasons()),
            counters=dict(facts.tally.raw),
        )

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Who the pipeline was when it last compiled; None if binding failed."""
        return self._profile.fingerprint if self._profile else None

    def _reasons(self) -> list[str]:
        """Everything noted, and where nothing was hit, the nearest stored fingerprint and what differs."""
        profile = self._profile
        if self._library is None or profile is None or self._facts.hits:
            return list(self._facts.reasons)
        if self._facts.installed and not self._facts.inert:
            return list(self._facts.reasons)  # nothing that the bundle covers ran yet
        if profile.fingerprint.id not in self._nearest:
            found = (
                profile.bundle if self._facts.installed else None
            )  # what this session saved explains nothing
            self._nearest[profile.fingerprint.id] = self._library.explain(profile.fingerprint, found)
        return [*self._facts.reasons, self._nearest[profile.fingerprint.id]]

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self, *, timeout: float | None = None) -> None:
        """Last save (waited for, at most ``timeout`` seconds), then everything the session changed is put back.

        Idempotent; never raises. The pipeline is uncompiled again, as it was before ``attach``.
        """
        if self.state == "closed" or os.getpid() != self._pid:
            return
        with self._shielded():
            if self._live() and self._saves and any(p.unsaved for p in self._profiles.values()):
                self._saver.request()
            if not self._saver.wait(timeout=timeout):
                self._facts.note(f"the last save was not done after {timeout} s")
        with self._shielded():
            self._undo.close()
        self.state = "closed"
        self._identify = _closed
        self._label = lambda name, args, kwargs: None  # both held the pipeline

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        fingerprint = self._profile.fingerprint.id[:12] if self._profile else "unbound"
        return f"<cachekit.Session {self.state} {fingerprint}>"


def _leave(pid: int) -> None:
    if os.getpid() == pid:  # what a forked child drops is its parent's
        shared.leave()


def _closed() -> Fingerprint:
    raise CachekitError("the session is closed")


def _strict_cause(error: BaseException) -> StrictMissError | None:
    """Our strict-mode error inside the compiler's wrapping, if that is what it was."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, StrictMissError):
        seen = getattr(seen, "inner_exception", None) or seen.__cause__ or seen.__context__
    return seen


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _close_at_exit(session: Session) -> None:
    if not _sessions:
        atexit.register(_close_all)
    _sessions.add(session)


def _close_all() -> None:
    for session in list(_sessions):
        session.close(timeout=EXIT_TIMEOUT_S)
