"""A session: one pipeline, from attach to close.

States: ``binding`` → ``recording`` (nothing kept) or ``warm`` (a bundle installed) → ``clean`` ⇄ ``dirty`` →
``closed``; ``disabled`` from anywhere, with a reason. After it is bound nothing here raises into the engine, except
StrictMissError in strict mode.

The module is one class and its helpers: everything it decides is about order (what happens when); what is found,
filed, compared and written is decided in ``installer``, ``profile``, ``library`` and below.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from cachekit.bundle import Shape, Unit
from cachekit.errors import CachekitError, StrictMissError
from cachekit.identity import Fingerprint, Plan
from cachekit.runtime import counters, recorder, torch_private
from cachekit.runtime.backend import Call, Graph, SessionBackend
from cachekit.runtime.installer import install
from cachekit.runtime.library import Library
from cachekit.runtime.process import PrivateFolder, shared
from cachekit.runtime.profile import Needs, Profile
from cachekit.runtime.report import Report
from cachekit.runtime.saver import Saver
from cachekit.runtime.signature import call_key, call_signature
from cachekit.settings import Settings

log = logging.getLogger("cachekit")

State = Literal["binding", "recording", "warm", "clean", "dirty", "closed", "disabled"]
Labeller = Callable[[str, Sequence[Any], Mapping[str, Any]], "Shape | None"]

EXIT_TIMEOUT_S = 60.0
"""How long the interpreter's exit waits for a save in progress."""
_MAX_KNOWN_CALLS = 4096


class Session:
    """Made by :func:`cachekit.attach`; a context manager. Safe to call from several threads."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        *,
        identify: Callable[[], Fingerprint],
        cpp_requirements: Callable[[], Mapping[str, str]],
        label: Labeller = lambda name, args, kwargs: None,
    ) -> None:
        self.settings = settings
        self.plan = plan
        self.recording = recorder.Recording()
        self.state: State = "binding"
        self._identify = identify
        self._cpp_requirements = cpp_requirements
        self._label = label
        self._pid = os.getpid()
        self._undo = contextlib.ExitStack()
        self._lock = threading.RLock()
        self._threads = threading.local()
        self._profiles: dict[str, Profile] = {}
        self._profile: Profile | None = None
        self._folder: PrivateFolder | None = None
        self._library: Library | None = None
        self._known_calls: dict[Any, tuple[Profile, tuple[str, ...]]] = {}
        self._open: dict[Any, tuple[Profile, tuple[str, ...], Shape | None]] = {}
        self._unlabelled: dict[Any, tuple[Profile, tuple[str, ...]]] = {}
        self._saver = Saver(self._save_now, name="cachekit-save")
        self._facts = _Facts()
        self.generations_delimited = False
        """Set by hooks that tell when a generation has ended; otherwise each call is one."""

    # --- binding ---------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Find, verify, install. Never raises: on any failure the session is disabled and says why."""
        try:
            self._folder = shared.enter(self.settings.process_root)
            self._undo.callback(shared.leave)
            self._library = Library(self.settings)
            self._profile = self._open_profile(self._identify())
            self.state = "warm" if self._facts.installed else "recording"
            _at_exit(self)
        except Exception as exc:  # a cache must never break the engine
            self.disable(f"{type(exc).__name__}: {exc}")

    def disable(self, reason: str) -> None:
        """Go on without a cache; what was changed is put back."""
        if self.state in ("disabled", "closed"):
            return
        self.state = "disabled"
        self._facts.note(reason)
        log.warning("cachekit is disabled for this pipeline: %s", reason)

    def undo(self, function: Callable[..., Any], *args: Any) -> None:
        """Have hooks' changes put back on close, last first."""
        self._undo.callback(function, *args)

    def _open_profile(self, fingerprint: Fingerprint) -> Profile:
        """The profile of a fingerprint, its bundle found and installed the first time."""
        kept = self._profiles.get(fingerprint.id)
        if kept is not None:
            return kept
        assert self._library is not None and self._folder is not None
        started = time.perf_counter()
        host = self._cpp_requirements()
        bundle = None
        try:
            bundle = self._library.find(fingerprint)
            if bundle is not None:
                self._facts.add_installed(install(self._library.store, bundle, self._folder, host))
        except CachekitError as exc:
            self._facts.note(f"bundle not used: {exc.diagnostics()}")
            bundle = None
        profile = Profile(fingerprint, host, bundle)
        self._profiles[fingerprint.id] = profile
        self._facts.load_s += time.perf_counter() - started
        return profile

    # --- compiling (called by the backend, on the generating thread) ----------------------------------------------

    def backend(self) -> SessionBackend:
        """A compiler backend whose code no other session is served."""
        return SessionBackend(self, mode=self.plan.mode, options=dict(self.plan.options), dynamic=self.plan.dynamic)

    def before_compile(self) -> Profile | None:
        """Who the pipeline is now: a changed one (adapter, processor, dtype) is another profile from here on."""
        if not self._live():
            return None
        try:
            with self._lock:
                self._profile = self._open_profile(self._identify())
            self._threads.before = counters.snapshot()
        except Exception as exc:
            self.failed(exc)
            return None
        return self._profile

    def after_compile(self, graph: Graph) -> None:
        """File what one graph looked up or made."""
        try:
            window = self.recording.take()
            graph.needs = graph.profile.absorb(window)
            self._facts.tally.add(self._threads.before, counters.snapshot())
            self._facts.tally.add_kernels(window.kernels)
            call = self.current_call()
            if call is not None:
                call.compiled.append(graph)
        except Exception as exc:
            self.failed(exc)

    def current_call(self) -> Call | None:
        """The observed forward that this thread is in."""
        calls = getattr(self._threads, "calls", None)
        return calls[-1] if calls else None

    def refuse_compile(self) -> Callable[[], None] | None:
        """What raises where something would be compiled, in strict mode only."""
        return self._raise_strict if self.settings.mode == "strict" else None

    def _raise_strict(self) -> None:
        raise StrictMissError("CACHEKIT_MODE=strict and this call would compile: " + "; ".join(self._explain()))

    def failed(self, error: Exception) -> None:
        """Something of ours failed in the engine's call path."""
        log.debug("cachekit failed", exc_info=error)
        self.disable(f"{type(error).__name__}: {error}")

    # --- calls of the denoiser ---------------------------------------------------------------------------------------

    def observed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call`` with what it compiles attributed and its shape registered. ``name`` names the denoiser."""
        import torch

        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._live():
                return call(*args, **kwargs)
            try:
                key = (name, call_key(args, kwargs, torch.Tensor))
                known = self._known_calls.get(key)
            except Exception as exc:
                self.failed(exc)
                return call(*args, **kwargs)
            context = Call(ran=[] if known is None else None)
            started = time.perf_counter()
            result = self._called(context, call, args, kwargs)
            if known is None or context.compiled or self.recording.waiting:
                seconds = time.perf_counter() - started
                self._register(key, context, seconds, lambda: _signature(name, args, kwargs))
                known = self._known_calls.get(key)
            if known is not None:
                self._ran(key, known, name, args, kwargs)
            return result

        return run

    def _called(self, context: Call, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not hasattr(self._threads, "calls"):
            self._threads.calls = []
        self._threads.calls.append(context)
        try:
            with recorder.scope(self.recording):
                return call(*args, **kwargs)
        except BaseException as exc:
            self._abandoned(context)
            strict = _strict_cause(exc)
            if strict is not None and strict is not exc:
                raise strict from None
            raise
        finally:
            self._threads.calls.pop()

    def _abandoned(self, context: Call) -> None:
        """A call failed or was cancelled: no shape, but what it compiled is kept."""
        try:
            profile = context.compiled[-1].profile if context.compiled else self._profile
            if profile is not None:
                profile.absorb(self.recording.take())
            self._open.clear()
        except Exception as exc:
            self.failed(exc)

    def _register(self, key: Any, context: Call, seconds: float, signature: Callable[[], str]) -> None:
        """A call that compiled, or the first of its signature: find or make its units."""
        try:
            graphs = context.compiled or context.ran or []
            profile = graphs[-1].profile if graphs else self._profile
            if profile is None:
                return
            window = self.recording.take()
            extra = profile.absorb(window)
            self._facts.tally.add_kernels(window.kernels)
            if context.compiled or window:
                units = self._units(profile, context.compiled, extra, seconds, signature)
            else:
                units = tuple(sorted({graph.unit_id for graph in graphs if graph.unit_id}))
            if len(self._known_calls) >= _MAX_KNOWN_CALLS:
                self._known_calls.clear()
            self._known_calls[key] = (profile, units)
        except Exception as exc:
            self.failed(exc)

    def _units(
        self, profile: Profile, graphs: list[Graph], extra: Needs, seconds: float, signature: Callable[[], str]
    ) -> tuple[str, ...]:
        before = set(profile.known_units())
        if self.plan.dynamic is False or self.plan.scope == "caller" or not graphs:
            made = [_static_unit(graphs, extra, seconds, signature())]
        else:
            made = [_dynamic_unit(profile, graph, extra, seconds, graphs) for graph in graphs]
        known = profile.known_units()
        for (unit, kernels), graph in zip(made, graphs or [None] * len(made), strict=False):
            profile.add_unit(unit, kernels)
            if graph is not None:
                graph.unit_id = unit.id
        for graph in graphs:
            graph.unit_id = graph.unit_id or made[0][0].id
        ids = tuple(sorted({unit.id for unit, _ in made}))
        covered = set(ids) <= before
        self._facts.add_call(seconds, [known[i].seconds for i in ids] if covered else None)
        return ids

    def _ran(self, key: Any, known: tuple[Profile, tuple[str, ...]], name: str, args: Any, kwargs: Any) -> None:
        if key in self._open:
            return
        try:
            shape = self._label(name, args, kwargs)
            self._open[key] = (*known, shape)
            if not self.generations_delimited:
                self.generation_finished()
        except Exception as exc:
            self.failed(exc)

    # --- generations -------------------------------------------------------------------------------------------------

    def generation_started(self) -> None:
        """A generation begins: what an earlier one left unfinished registers no shape."""
        self._open.clear()

    def generation_finished(self) -> None:
        """A generation ended well: register its shapes and save if something is new."""
        if not self._live():
            return
        try:
            for key, (profile, units, shape) in self._open.items():
                if shape is None:
                    self._unlabelled[key] = (profile, units)
                else:
                    profile.add_shape(shape, units)
            self._open.clear()
            self._settle()
        except Exception as exc:
            self.failed(exc)

    def register_shape(self, width: int, height: int, batch: int, **variant: str | int | float | bool | None) -> bool:
        """Name the shape of everything that ran since the last call of this; False if nothing did.

        Args:
            width, height: pixels, or whatever the engine's users call a size. batch: images per call.
            variant: what else tells shapes apart, e.g. ``frames=17``.
        """
        if not self._live():
            return False
        try:
            shape = Shape.of(width, height, batch, **variant)
            named, self._unlabelled = self._unlabelled, {}
            for profile, units in named.values():
                profile.add_shape(shape, units)
            return bool(named)
        except CachekitError as exc:
            self._facts.note(f"shape not registered: {exc}")
            return False

    def _settle(self) -> None:
        """After a generation: dirty or clean, one line in the log, and a save where the mode wants one."""
        first = self.state in ("recording", "warm")
        dirty = any(profile.dirty for profile in self._profiles.values())
        self.state = "dirty" if dirty else "clean"
        again = first and self.settings.mode == "on"
        if (dirty or again) and self.saves and self.settings.save == "auto":
            self._saver.request()
        if first:
            self._first_generation()

    def _first_generation(self) -> None:
        report = self.report()
        log.info("%s", report)
        if report.inert:
            log.warning("cachekit: the installed bundle got no hit: %s", "; ".join(self._explain()))

    # --- saving ------------------------------------------------------------------------------------------------------

    @property
    def saves(self) -> bool:
        """Whether this session's mode saves at all."""
        return self.settings.mode in ("auto", "on") and self.settings.save != "never"

    def save(self, *, wait: bool | float = False) -> bool:
        """Save what is new, in the background; with ``wait`` True or seconds, whether it is done by then."""
        if not self._live() or self.settings.mode not in ("auto", "on"):
            return False
        ticket = self._saver.request()
        if wait is False:
            return True
        return self._saver.wait(ticket, None if wait is True else float(wait))

    def _save_now(self) -> None:
        """Runs on the saver's thread."""
        for profile in list(self._profiles.values()):
            pending = profile.take()
            if not pending:
                continue
            try:
                assert self._library is not None and self._folder is not None
                published = self._library.publish(profile.fingerprint, pending, self._folder, _producer(profile))
            except Exception as exc:
                profile.give_back(pending)
                self._facts.note(f"not saved: {type(exc).__name__}: {exc}")
                log.warning("cachekit could not save: %s", exc)
                continue
            profile.adopt(published.bundle)
            self._facts.saved.append(published.bundle.generation)
            problem = self._library.index(
                published.bundle, "saved", {"bytes": published.bytes_written, "new": published.new_entries}
            )
            if problem:
                self._facts.note(problem)
        if self.state == "dirty" and not any(profile.dirty for profile in self._profiles.values()):
            self.state = "clean"

    # --- proof -------------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """What was found, hit and saved so far; see :class:`~cachekit.runtime.report.Report`."""
        facts, profile = self._facts, self._profile
        bundle = profile.bundle if profile else None
        hits = {kind: n for kind, n in facts.tally.hits.items() if n}
        covered = facts.cold_s is not None
        inert = covered and bool(facts.installed) and not hits
        return Report(
            state=self.state,
            mode=self.settings.mode,
            fingerprint=profile.fingerprint.id if profile else None,
            generation=bundle.generation if bundle else None,
            installed=dict(facts.installed),
            skipped=dict(facts.skipped),
            hits=hits,
            misses={kind: n for kind, n in facts.tally.misses.items() if n},
            bypasses=dict(facts.tally.bypasses),
            load_s=facts.load_s,
            first_calls_s=facts.warm_calls_s if covered else facts.calls_s,
            cold_s=facts.cold_s or 0.0,
            effective=(bool(hits) and (facts.cold_s or 0.0) > facts.load_s + facts.warm_calls_s) if covered else None,
            inert=inert,
            shapes=tuple(shape.label for shape in profile.shapes()) if profile else (),
            saved_generations=tuple(facts.saved),
            reasons=tuple([*facts.reasons, *self._explain()]),
            counters=dict(facts.tally.raw),
        )

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Who the pipeline was when it last compiled; None if binding failed."""
        return self._profile.fingerprint if self._profile else None

    def _explain(self) -> list[str]:
        """Why nothing was installed, or nothing hit: the nearest stored fingerprint and what differs."""
        if self._library is None or self._profile is None or (self._facts.installed and self._facts.tally.hits):
            return []
        if self._profile.fingerprint.id not in self._facts.explained:
            self._facts.explained[self._profile.fingerprint.id] = _nearest_text(self._library, self._profile)
        return [self._facts.explained[self._profile.fingerprint.id]]

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self, *, timeout: float | None = None) -> None:
        """Last save, then everything the session changed is put back. Idempotent; never raises."""
        if self.state == "closed" or os.getpid() != self._pid:
            return
        try:
            if self.state != "disabled" and self.saves and any(p.unsaved for p in self._profiles.values()):
                self._saver.request()
            if not self._saver.stop(timeout):
                self._facts.note(f"the last save was not done after {timeout} s")
        except Exception as exc:
            log.warning("cachekit could not finish its last save: %s", exc)
        self.state = "closed"
        try:
            self._undo.close()
        except Exception as exc:
            log.warning("cachekit could not put everything back: %s", exc)

    def __enter__(self) -> Session:
        """The session itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """State and fingerprint, no paths."""
        fingerprint = self._profile.fingerprint.id[:12] if self._profile else "unbound"
        return f"<cachekit.Session {self.state} {fingerprint}>"

    def _live(self) -> bool:
        return self.state not in ("disabled", "closed") and os.getpid() == self._pid


class _Facts:
    """What happened, gathered for the report."""

    def __init__(self) -> None:
        self.installed: dict[str, int] = {}
        self.skipped: dict[str, int] = {}
        self.tally = counters.Tally()
        self.load_s = 0.0
        self.calls_s = 0.0
        self.warm_calls_s = 0.0
        self.cold_s: float | None = None
        self.saved: list[int] = []
        self.reasons: list[str] = []
        self.explained: dict[str, str] = {}

    def note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def add_installed(self, done: Any) -> None:
        for kind, count in done.counts.items():
            if count:
                self.installed[kind] = self.installed.get(kind, 0) + count
        for reason, count in done.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        for problem in done.problems:
            self.note(problem)

    def add_call(self, seconds: float, recorded: list[float] | None) -> None:
        """A call that compiled; ``recorded`` are its units' cold seconds if all were covered before."""
        self.calls_s += seconds
        if recorded is not None:
            self.warm_calls_s += seconds
            self.cold_s = (self.cold_s or 0.0) + sum(recorded)


def _static_unit(graphs: list[Graph], extra: Needs, seconds: float, signature: str) -> tuple[Unit, set[str]]:
    needs = Needs()
    for graph in graphs:
        needs.add(graph.needs)
    needs.add(extra)
    unit = Unit(dynamic=False, signature=signature, needs=tuple(sorted(needs.identities)), seconds=seconds)
    return unit, needs.kernels


def _dynamic_unit(
    profile: Profile, graph: Graph, extra: Needs, seconds: float, graphs: list[Graph]
) -> tuple[Unit, set[str]]:
    """One graph's unit: the call's seconds are shared out by what each backend call took."""
    needs = Needs(set(graph.needs.identities), set(graph.needs.kernels))
    found = profile.unit_for(needs)
    needs.add(extra)
    if found is not None:
        return found, needs.kernels
    total = sum(other.seconds for other in graphs) or 1.0
    signature = graph.signature
    unit = Unit(
        dynamic=True,
        signature=signature.text if signature else "",
        guards=signature.guards if signature else "",
        ranges=tuple(sorted((name, low, high) for name, (low, high) in graph.ranges.items())),
        needs=tuple(sorted(needs.identities)),
        seconds=seconds * graph.seconds / total,
    )
    return unit, needs.kernels


def _signature(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    import torch

    return call_signature(args, kwargs, torch.Tensor, module=name)


def _strict_cause(error: BaseException) -> StrictMissError | None:
    """Our strict-mode error inside the compiler's wrapping, if that is what it was."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, StrictMissError):
            return seen
        inner = getattr(seen, "inner_exception", None)
        seen = inner or seen.__cause__ or seen.__context__
    return None


def _producer(profile: Profile) -> dict[str, Any]:
    """Facts about who made a contribution: no host, user or path."""
    toolchain = profile.fingerprint.components.get("toolchain", {})
    return {name: toolchain[name] for name in ("torch", "python", "triton", "gpu", "cpu") if name in toolchain}


def _nearest_text(library: Library, profile: Profile) -> str:
    try:
        found = library.nearest(profile.fingerprint)
    except CachekitError as exc:
        return f"no bundle for this fingerprint, and the store cannot be searched: {exc}"
    subject = "the bundle got no hit" if profile.bundle else "no bundle for this fingerprint"
    if found is None:
        return f"{subject}; no other fingerprint is stored"
    fid, differences = found
    return f"{subject}; nearest is {fid[:12]}, which differs in {', '.join(str(d) for d in differences)}"


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _at_exit(session: Session) -> None:
    if not _open_sessions:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open_sessions.add(session)


def _close_all(sessions: Iterable[Session] = _open_sessions) -> None:
    for session in list(sessions):
        session.close(timeout=EXIT_TIMEOUT_S)


__all__ = ["Session", "State", "torch_private"]
