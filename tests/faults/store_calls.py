"""Run by test_store_calls: calls of a save and of a start fail, one after another. Prints what happened as JSON.

Arguments: an empty folder, and ``all`` for every call with every errno. Otherwise of each kind of call (what libc was
asked, what it acts on) the first one fails with every errno, and the last one with one.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from cachekit.errors import CachekitError
from cachekit.store import files
from tests.faults import acts
from tests.faults.acts import NEW, NEXT, OLD, artifacts
from tests.faults.shim import ERRNOS, FAIL, FAIL_ON, SHORT, Call, Shim

Act = Callable[[Path, acts.Said], str]


class Operation:
    """Something that is done again and again, each time on a copy of the same folder, with another call failing.

    ``act`` does it and says what happened; ``check`` looks afterwards, when nothing fails any more.
    """

    def __init__(self, shim: Shim, work: Path, *, act: Act, check: Callable[[Path, str], None]) -> None:
        self._shim = shim
        self._work = work
        self._base = work / "base"
        self._act = act
        self._check = check
        self._number = 0
        self._base.mkdir(parents=True)

    @property
    def base(self) -> Path:
        """What the folder looks like before; to be filled by the caller."""
        return self._base

    def calls(self) -> list[Call]:
        """The calls it makes where nothing fails."""
        self.case(0, FAIL, "EIO")
        return self._last

    def case(self, n: int, mode: int, error: str) -> str:
        """Do it once; what happened."""
        self._number += 1
        folder = self._work / str(self._number)
        shutil.copytree(self._base, folder)
        self._shim.watch(folder)
        said = acts.Said()
        try:
            with acts.listening(said):
                with self._shim.fault(n, mode, error):
                    outcome = self._act(folder, said)
                self._last = self._shim.calls
                assert outcome in {"saved", "warm"} or said.names(folder), (
                    "nothing names the path and the errno"
                )
                self._check(folder, outcome)
        except BaseException as exc:
            call = self._last[n - 1] if 0 < n <= len(self._last) else None
            raise AssertionError(f"call {n}, {call}, {error}: {said.warnings}") from exc
        shutil.rmtree(folder)
        return outcome


def chosen(calls: list[Call], known: set[Call], *, everything: bool) -> Iterator[tuple[int, str]]:
    """Which calls fail with which errno, by number."""
    first: dict[Call, int] = {}
    last: dict[Call, int] = {}
    for n, call in enumerate(calls, 1):
        first.setdefault(call, n)
        last[call] = n
    for n, call in enumerate(calls, 1):
        if everything or (n == first[call] and call not in known):
            yield from ((n, error) for error in ERRNOS)
        elif n == last[call]:
            yield n, ERRNOS[len(call.place) % len(ERRNOS)]


def saving(folder: Path, said: acts.Said) -> str:
    """Save, and say what happened."""
    try:
        _, problem = acts.save(folder, NEW)
    except CachekitError as exc:
        said.warnings.append(str(exc))
        return "not saved, kept"
    if problem is not None:
        said.warnings.append(problem)
    return "saved, not indexed" if problem else "saved"


def saved(folder: Path, outcome: str, *before: str) -> None:
    """What was acknowledged is there, the store verifies, and the next save leaves nothing out."""
    acts.verify(folder, indexed=outcome == "saved")
    assert acts.holds(folder, *before, *([] if outcome == "not saved, kept" else [NEW]))
    _, problem = acts.save(folder, NEW)
    assert problem is None, problem
    assert acts.holds(folder, *before, NEW)
    files.remove_leftovers(folder, below=True)
    assert not list(folder.rglob(".tmp-*"))


def starting(folder: Path, said: acts.Said, shim: Shim) -> str:
    """Start, and say what happened. Nothing wrong is ever found or installed."""
    done = acts.start(folder, folder.parent / "elsewhere", looking=shim.paused)
    said.warnings += done.problems
    wanted = {artifact.key: artifact.data for artifact in artifacts(OLD)}
    assert done.found.items() <= wanted.items()
    assert done.installed.items() <= wanted.items()
    kernels = {key for key in wanted if key.endswith(".so")}
    if done.found != wanted:
        return "warm in part" if done.found else "cold start"
    where = ", in another folder" if done.elsewhere else ""
    return f"warm{where}" if done.installed.keys() == kernels else "warm, kernels compiled"


def started(folder: Path, _outcome: str) -> None:
    """The store verifies, the next start is warm, and no private folder is left."""
    acts.verify(folder)
    assert acts.holds(folder, OLD)
    assert acts.private_folders(folder) == []


def main(work: Path, *, everything: bool) -> dict[str, list[list[object]]]:
    """All operations: rows of (while, call, on, {errno: outcomes})."""
    shim = Shim(work)
    first = Operation(shim, work / "first", act=saving, check=saved)
    later = Operation(
        shim, work / "later", act=saving, check=lambda folder, outcome: saved(folder, outcome, OLD)
    )
    acts.save(later.base, OLD)
    start = Operation(
        shim, work / "start", act=lambda folder, said: starting(folder, said, shim), check=started
    )
    acts.save(start.base, OLD)
    acts.save(work / "warm up", NEXT)  # so that nothing is imported while calls are counted
    acts.verify(work / "warm up")
    rows: dict[tuple[str, Call], dict[str, list[str]]] = {}
    cases = 0
    for name, operation in (("save", later), ("save", first), ("start", start)):
        calls = operation.calls()
        known = {call for row, call in rows if row == name}
        for n, error in chosen(calls, known, everything=everything):
            outcome = operation.case(n, FAIL, error)
            rows.setdefault((name, calls[n - 1]), {}).setdefault(error, []).append(outcome)
            cases += 1
        for n in range(1, len(calls) + 1, 1 if everything else 20):
            operation.case(n, FAIL_ON, ERRNOS[n % 4])
            cases += 1
        assert operation.case(0, SHORT, "EIO") in {"saved", "warm"}
    return {
        "rows": [[name, call.name, call.place, seen] for (name, call), seen in rows.items()],
        "cases": cases,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), everything="all" in sys.argv[2:])))
