"""What a session does with a store, without torch: save and start, and what must hold after either went wrong."""

from __future__ import annotations

import functools
import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typer.main import get_command

from cachekit.bundle import Artifact, Bundle
from cachekit.cli import app, checks
from cachekit.errors import CachekitError, StoreError
from cachekit.runtime import kernels
from cachekit.runtime.library import Library
from cachekit.runtime.process import PrivateFolder
from cachekit.runtime.profile import Pending
from cachekit.settings import Settings
from cachekit.store.publish import read_artifacts
from tests.unit.runtime.helpers import fixture_artifacts, kernel
from tests.unit.store.world import FINGERPRINT, autotune, covering, key_of, noise

OLD, NEW, NEXT = SAVES = ("2.12", "2.13", "2.14")
"""Names of saves, each of other artifacts: the versions of torch whose fixtures they are."""

checks.PATIENCE_S = 0.0  # nobody else saves meanwhile

_TELLS = re.compile(r"(\bE[A-Z]{2,}\b|disk|readonly|I/O|lock|unable to open)")


@dataclass
class Said:
    """What the library said through the log, and what it returned in place of raising."""

    warnings: list[str] = field(default_factory=list)

    def names(self, folder: Path) -> bool:
        """Whether something was said that names a path in the folder and what the system answered."""
        return any(str(folder) in text and _TELLS.search(text) for text in self.warnings)


@contextmanager
def listening(said: Said) -> Iterator[None]:
    """Collect what is logged as a warning or worse."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.warnings.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logger = logging.getLogger("cachekit")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


@functools.cache
def artifacts(name: str) -> tuple[Artifact, ...]:
    """What one compile made: partners as torch of that version made them, a tuned kernel, machine code."""
    library = kernel(key_of("kernel", name), b"\x7fELF" + noise(f"kernel {name}", 8000))
    return (*fixture_artifacts("single", minor=name), autotune(name), library)


def save(folder: Path, name: str) -> tuple[Bundle, str | None]:
    """A session's save: publish, then record. Returns the bundle, and why it could not be recorded.

    Raises CachekitError if nothing was published.
    """
    library = Library(Settings(dir=folder))
    made = artifacts(name)
    coverage = covering(f"64x64x{SAVES.index(name) + 1}", *made)
    pending = Pending(made, frozenset(), tuple((u, frozenset()) for u in coverage.units), coverage.shapes)
    no_kernels: Any = SimpleNamespace(inductor=folder / "never")
    bundle = library.publish(FINGERPRINT, pending, no_kernels).bundle
    return bundle, library.record("saved", bundle)


@dataclass
class Started:
    """What a start found: artifacts by key, kernels that were put in their place, and what went wrong."""

    found: dict[str, bytes] = field(default_factory=dict)
    installed: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    elsewhere: bool = False


def start(
    folder: Path, temporary: Path, *, looking: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Started:
    """A session's start: a private folder, find, verify, install. Never raises for anything of ours.

    ``looking`` is entered while this looks at what was installed.
    """
    done = Started()
    settings = Settings(dir=folder)
    try:
        private = PrivateFolder(settings.process_root)
    except StoreError as exc:
        done.problems.append(str(exc))
        done.elsewhere = True
        private = PrivateFolder(temporary)
    try:
        library = Library(settings)
        bundle = library.find(FINGERPRINT)
        if bundle is not None:
            loaded = read_artifacts(library.store, bundle, lambda entry: True)
            done.problems += [str(problem) for problem in loaded.problems]
            done.found = {artifact.key: artifact.data for artifact in loaded.artifacts}
            machine_code = [artifact for artifact in loaded.artifacts if artifact.kind == "kernel"]
            kernels.write_libraries(machine_code, private.inductor)
    except CachekitError as exc:
        done.problems.append(str(exc))
    with looking():
        installed = private.inductor.rglob("*.so")
        done.installed = {str(path.relative_to(private.inductor)): path.read_bytes() for path in installed}
    private.remove()
    return done


@functools.cache
def _command() -> Any:
    """The application as Click has it; making that takes longer than verifying a small store."""
    return get_command(app)


def verify(folder: Path, *, indexed: bool = True) -> None:
    """``cachekit verify`` finds no problem; with ``indexed=False`` the manifest may lack what was saved last."""
    told = io.StringIO()
    with redirect_stdout(told), suppress(SystemExit):
        _command().main(["verify", "--json", "--dir", str(folder)], standalone_mode=False)
    problems = json.loads(told.getvalue())["problems"]
    assert [found for found in problems if indexed or found["code"] != "manifest"] == []


def holds(folder: Path, *names: str) -> bool:
    """Whether a start gets everything of these saves, and the right bytes."""
    found = start(folder, folder / "never").found
    return all(found.get(a.key) == a.data for name in names for a in artifacts(name))


def private_folders(folder: Path) -> list[str]:
    """What is left of processes."""
    parent = folder / "process"
    return sorted(path.name for path in parent.iterdir()) if parent.is_dir() else []
