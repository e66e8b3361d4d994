"""``attach``: the one call an engine makes."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachekit.errors import CachekitError, ConfigurationError
from cachekit.hooks.compile import compile_denoiser
from cachekit.hooks.diffusers import DiffusersTarget, is_pipeline
from cachekit.hooks.module import ModuleTarget
from cachekit.identity import Plan, fingerprint, host_requirements
from cachekit.logs import Log, said
from cachekit.runtime import switches, torch_private
from cachekit.runtime.forks import renew_in_child
from cachekit.runtime.session import Session
from cachekit.settings import PREFIX, Settings
from cachekit.store import mounts

log = Log("cachekit")

Target = DiffusersTarget | ModuleTarget

_attached: weakref.WeakKeyDictionary[Any, weakref.ref[Session]] = weakref.WeakKeyDictionary()
"""Denoiser -> the session that compiles it."""


class _Turns:
    """Whose turn it is to take a denoiser over: two at once would each put back what the other one changed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        renew_in_child(self)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Nobody else's meanwhile. What is waited for in here must not attach: a last save, torch's compile lock."""
        with self._lock:
            yield


_turns = _Turns()


def attach(
    target: Any,
    *,
    plan: Plan | None = None,
    mode: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    save: str | None = None,
    settings: Settings | None = None,
) -> Session:
    """Make the next start of ``target`` a warm one, and this one too if it was seen before.

    Finds what is kept for exactly this pipeline, toolchain and plan, installs it, compiles the denoiser by the plan
    and registers what runs. Call it once, after loading, moving and changing the pipeline and before its first call.

    Args:
        target: a diffusers pipeline, or any ``torch.nn.Module`` (also one from ``torch.compile``).
        plan: how to compile; by default :meth:`Plan.for_pipeline`. With ``Plan(..., scope="caller")`` the engine
            compiles by itself, and artifacts are attributed only while this is the one session of the process.
        mode, dir, save: override ``CACHEKIT_MODE``, ``CACHEKIT_DIR``, ``CACHEKIT_SAVE``.
        settings: replaces the environment altogether.

    Returns:
        The session. If anything fails it is disabled, says why in ``report()``, and the engine keeps running.

    Raises:
        ConfigurationError: an argument is wrong: no module, a plan or mode that does not exist. The environment's
            mistakes do not raise: they disable the session.
    """
    if not is_pipeline(target) and not _is_module(target):
        raise ConfigurationError(
            f"attach needs a diffusers pipeline or a torch.nn.Module, not {type(target).__name__}"
        )
    chosen: Target = DiffusersTarget(target) if is_pipeline(target) else ModuleTarget(target)
    reason, settings = _settings(settings, mode=mode, dir=dir, save=save)
    plan = _plan(chosen, plan)
    if plan.scope != "caller":  # what torch refuses is refused here, not in the first generation
        torch_private.inductor_settings(mode=plan.mode, options=dict(plan.options), dynamic=plan.dynamic)
    _close_earlier(chosen)
    settings, unsaved = _where_it_is_safe(settings)
    session = Session(
        settings,
        plan,
        identify=lambda: fingerprint(target, plan),
        cpp_requirements=lambda: host_requirements(plan),
        label=chosen.label,
    )
    with _put_back_if_interrupted(session):
        _bind(session, reason)
        if unsaved:
            session.facts.note(unsaved)
            log.warning("cachekit saves nothing: %s", unsaved)
        with _turns.taken():
            _close_earlier(chosen)  # another thread may have attached meanwhile
            _start(session, chosen, plan)
    return session


@contextlib.contextmanager
def _put_back_if_interrupted(session: Session) -> Iterator[None]:
    """Nobody gets to close a session that an interrupt kept from being returned."""
    try:
        yield
    except BaseException:
        session.close(timeout=0.0)
        raise


def _bind(session: Session, reason: str | None) -> None:
    """Bind the session, unless there is a reason not to."""
    reason = reason or _unsupported() or switches.nothing_is_kept(dict(session.plan.options))
    if reason:
        session.disable(reason)
    elif session.settings.mode == "off":
        session.disable("CACHEKIT_MODE=off", level=logging.INFO)
    else:
        session.bind()


def _start(session: Session, target: Target, plan: Plan) -> None:
    """Compile and observe; without a cache, compile only."""
    try:
        live = session.state != "disabled"
        for name, module in target.denoisers():
            inner = torch_private.original_module(module)
            backend = session.backend() if live or session.settings.mode == "strict" else None
            compile_denoiser(inner, plan, backend, session.undo)
            _attached[module] = weakref.ref(session)
            if live:
                _observe(session, name, module)
        if live:
            target.watch(session)
    except Exception as exc:  # whatever torch or diffusers raise while being told to compile
        session.disable(said(exc))


def _close_earlier(target: Target) -> None:
    """A denoiser belongs to one session: attaching again closes the one before, its last save included."""
    for _, module in target.denoisers():
        earlier = _attached.get(module)
        session = earlier() if earlier is not None else None
        if session is not None:
            session.close()


def _observe(session: Session, name: str, module: Any) -> None:
    if torch_private.original_module(module) is not module:
        session.undo(setattr, module, "forward", module.forward)
        module.forward = session.observed(name, module.forward)
        return
    before = torch_private.compiled_call(module)
    session.undo(torch_private.set_compiled_call, module, before)
    torch_private.set_compiled_call(
        module, session.observed(name, before or torch_private.plain_call(module))
    )


def _plan(target: Target, plan: Plan | None) -> Plan:
    if plan is not None and not isinstance(plan, Plan):
        raise ConfigurationError(f"plan must be a cachekit.Plan, not {type(plan).__name__}")
    if plan is not None:
        return plan
    chosen = Plan.for_pipeline(target.target)
    if any(torch_private.original_module(module) is not module for _, module in target.denoisers()):
        return dataclasses.replace(chosen, scope="caller", dynamic=None, fullgraph=False)
    return chosen


def _settings(given: Settings | None, **overrides: Any) -> tuple[str | None, Settings]:
    """The settings to use, and why the session must be disabled if the environment's are wrong.

    Raises ConfigurationError where an argument is wrong.
    """
    chosen = {name: os.fspath(value) for name, value in overrides.items() if value is not None}
    if given is not None:
        if "dir" in chosen:
            chosen["dir"] = Path(chosen["dir"]).expanduser().absolute()
        return None, dataclasses.replace(given, **chosen)
    arguments = {f"{PREFIX}{name.upper()}": value for name, value in chosen.items()}
    Settings.from_env({**arguments, "HOME": os.environ.get("HOME", os.sep)})  # the caller's mistakes raise
    try:
        settings = Settings.from_env({**os.environ, **arguments})
    except CachekitError as exc:
        return exc.diagnostics(), Settings(dir=Path(os.sep), mode="off")
    if settings.unknown:
        log.warning("cachekit does not know %s", ", ".join(settings.unknown))
    return None, settings


def _where_it_is_safe(settings: Settings) -> tuple[Settings, str | None]:
    """A store on a network file system is used readonly, and why (ADR 0006)."""
    unsafe = mounts.unsafe_to_write(settings.store_root) if settings.mode in ("auto", "on") else None
    return (dataclasses.replace(settings, mode="readonly"), unsafe) if unsafe else (settings, None)


def _unsupported() -> str | None:
    """Why nothing can be cached here, if so (design section 12)."""
    if not sys.platform.startswith("linux"):
        return f"platform {sys.platform} is not supported"
    if (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid()):
        return (
            "the process runs with another user's rights (setuid), and its environment is not to be trusted"
        )
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() > 1:
        return "torch.distributed has more than one rank, and ranks cannot decide together yet"
    return None


def _is_module(target: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)
