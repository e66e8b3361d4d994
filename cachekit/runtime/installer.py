"""Find, verify, install: a bundle's artifacts into the folder where torch will look for them.

What this host does not meet is left out and named. Nothing here raises into the engine: the session turns every
error into a cold start with a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachekit.bundle import TORCH_KINDS, Artifact, Bundle, Entry, Requires, megacache, unmet
from cachekit.errors import CachekitError
from cachekit.logs import said
from cachekit.runtime import compiler, kernels, portions, torch_private
from cachekit.runtime.background import quietly
from cachekit.runtime.process import PrivateFolder
from cachekit.runtime.stopwatch import Stopwatch

if TYPE_CHECKING:
    from cachekit.store.fetch import Loaded


@dataclass
class Installed:
    """What one installation did."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    """Identities that the bundle lists and that could not be used as they are, damaged or for another host: to be
    recorded and offered again."""


def install(
    store: Any,
    bundle: Bundle,
    folder: PrivateFolder,
    host: Mapping[str, str],
    *,
    steps: Stopwatch | None = None,
) -> Installed:
    """Read the artifacts that this host may use and put them where torch looks.

    ``host`` answers the requirements of artifacts with C++ in them; those of kernels are found out here, and only if
    the bundle holds any. ``steps`` is told where the time goes.

    Raises CachekitError where nothing at all could be read.
    """
    done, steps = Installed(), steps or Stopwatch()
    facts = dict(host)
    if any(entry.kind == "kernel" for entry in bundle.entries):
        with steps("kernels"):
            _install_kernels(store, bundle, folder, facts, done)
    entries = [entry for entry in bundle.entries if entry.kind in TORCH_KINDS]
    usable = [entry for entry in entries if not _skip(entry, facts, done)]
    _install_usable(store, usable, done, steps)
    return done


def _install_usable(store: Any, entries: Sequence[Entry], done: Installed, steps: Stopwatch) -> None:
    from cachekit.store.fetch import read_entries

    def read(portion: portions.Portion) -> Loaded:
        with steps("read"):
            return read_entries(store, portion)

    with (
        quietly()
    ):  # for each other's sake: whoever writes or unpacks lets the interpreter lock go all the time
        for loaded in portions.ahead(portions.split(entries), read):
            artifacts = _readable(loaded, done)
            del loaded  # or its bytes would be kept through the loading
            _load(artifacts, done, steps)


def _install_kernels(
    store: Any, bundle: Bundle, folder: PrivateFolder, facts: dict[str, str], done: Installed
) -> None:
    """For each compiler whose kernels this host may use; that is its own one, if it has one."""
    entries = [entry for entry in bundle.entries if entry.kind == "kernel"]
    for host, asked in kernels.hosts(entries):
        if compiler.is_missing():
            compiler.go_by_name()
        _install_kernels_of(asked, store, folder, {**facts, **host}, done=done)


def _install_kernels_of(
    entries: list[Entry],
    store: Any,
    folder: PrivateFolder,
    facts: dict[str, str],
    *,
    done: Installed,
) -> None:
    """Probe answers first: the command line of a kernel depends on them."""
    probes = [entry for entry in entries if entry.key.endswith(kernels.PROBE_SUFFIX)]
    libraries = [entry for entry in entries if not entry.key.endswith(kernels.PROBE_SUFFIX)]
    answers = _read_entries(store, probes, facts, done)
    done.counts["probe"] += kernels.learn(answer for answer in answers if _is_answer(answer, done))
    if any(not unmet(_without_command(entry.requires), facts) for entry in libraries):
        facts |= _command_line(done)
    found = _read_entries(store, libraries, facts, done)
    done.counts["kernel"] += kernels.write_libraries(found, folder.inductor)
    if compiler.is_missing() and found:
        done.problems.append("no C++ compiler on this host: compiled kernels are used, others cannot be made")
        refused = kernels.discard_unloadable(found, folder.inductor)
        done.counts["kernel"] -= len(refused)
        done.problems += [f"kernel {key} cannot be loaded here: {why}" for key, why in refused.items()]


def _is_answer(artifact: Artifact, done: Installed) -> bool:
    if artifact.data in (b"0", b"1"):
        return True
    done.problems.append(f"{artifact.kind} {artifact.key} not installed: the answer of a probe is 0 or 1")
    return False


def _command_line(done: Installed) -> Mapping[str, str]:
    """What the kernels' command line is here; may probe, which torch would do anyway when it looks a kernel up."""
    try:
        return kernels.command_line()
    except (OSError, RuntimeError) as exc:  # no compiler, and a probe that the bundle does not answer
        done.problems.append(f"kernels are not used: {exc}")
        return {}


def _without_command(needed: Requires) -> Requires:
    return tuple((name, value) for name, value in needed if name != "command")


def _read_entries(
    store: Any, entries: Iterable[Entry], facts: Mapping[str, str], done: Installed
) -> list[Artifact]:
    from cachekit.store.fetch import read_entries

    return _readable(read_entries(store, [entry for entry in entries if not _skip(entry, facts, done)]), done)


def _readable(loaded: Loaded, done: Installed) -> list[Artifact]:
    """What was admitted; the rest is named."""
    for problem in loaded.problems:
        done.problems.append(str(problem))
        done.damaged.add(problem.identity.id)
    return list(loaded.artifacts)


def _skip(entry: Entry, facts: Mapping[str, str], done: Installed) -> bool:
    """Whether this host must not use an artifact; counts the reason."""
    differences = unmet(entry.requires, facts)
    if differences:
        done.damaged.add(entry.identity.id)
        reason = ", ".join(
            f"{d.name} {d.wanted} is required, here {d.found or 'unknown'}" for d in differences
        )
        done.skipped[reason] += 1
    return bool(differences)


def _load(artifacts: list[Artifact], done: Installed, steps: Stopwatch) -> None:
    """Hand artifacts to torch as one canonical bundle; a partial load is reported, never raised (torch#156813).

    ``artifacts`` is emptied: torch makes copies of its own, and ours are not needed any more.
    """
    if not artifacts:
        return
    with steps("imports"):
        torch_private.import_loader()
    kinds = Counter(artifact.kind for artifact in artifacts)
    with steps("encode"):
        data = megacache.encode(artifacts)
    artifacts.clear()
    try:
        with steps("torch"), torch_private.compile_lock():
            count = torch_private.load_artifacts(data)
    except CachekitError:
        raise
    except Exception as exc:  # torch raises whatever its caches raise: OSError, unpickling errors, assertions
        done.problems.append(f"torch loaded the bundle in part: {said(exc)}")
        return
    if count is None:
        done.problems.append("torch refused the bundle; its log says why")
        return
    done.counts.update(kinds)
