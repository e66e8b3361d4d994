"""Run by test_session_calls: calls of a real session fail, one kind after another. Prints what happened as JSON.

One process makes many sessions; between them everything is forgotten that torch and the library keep in memory.
Arguments: an empty folder, and ``all`` for everything that the table says: each kind of call in the private folder with
every errno, and in the rest with one. Otherwise only the former, with one.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import cachekit
from cachekit.runtime.process import shared
from cachekit.runtime.report import Report
from tests.faults import acts
from tests.faults.shim import ERRNOS, FAIL, Call, Shim
from tests.functional.nets import Product

PRIVATE = {"folder of private folders", "private folder", "compiler's file", "kernel"}
"""What store_calls, without torch, cannot try: the rest was tried there with every errno."""

INPUT = torch.linspace(-1, 1, 32).reshape(4, 8)


def forget() -> None:
    """What a new process would not know."""
    torch._dynamo.reset()
    torch._inductor.utils.clear_caches()
    folder, shared._folder = shared._folder, None
    if folder is not None:
        folder.remove()
    gc.collect()


def run(session: cachekit.Session, module: torch.nn.Module) -> None:
    """The engine generates, and gets what it would have got without a cache."""
    with torch.no_grad():
        result = module(INPUT)
    torch.testing.assert_close(result, INPUT @ module.weight)


def compiled(report: Report) -> str:
    """How the graph came to run, as far as it is not the usual way."""
    reasons = " ".join(report.reasons)
    if "uncompiled" in reasons:
        return "uncompiled"
    return "in another folder, " if "private folder was replaced" in reasons else ""


def _is_compilers(calls: list[Call], n: int) -> bool:
    """Whether torch failed to read what it looks up: it says so itself, and compiles."""
    return calls[n - 1].place == "compiler's file"


class Sessions:
    """Sessions on copies of one folder."""

    def __init__(self, shim: Shim, work: Path) -> None:
        self._shim = shim
        self._work = work
        self._number = 0
        self.base = work / "base"
        self.base.mkdir(parents=True)

    def case(
        self, act: Callable[[Path, int, str, acts.Said], str], n: int, error: str
    ) -> tuple[str, list[Call]]:
        """One session; what happened, and the calls it made."""
        self._number += 1
        folder = self._work / str(self._number)
        shutil.copytree(self.base, folder)
        self._shim.watch(folder)
        said = acts.Said()
        calls: list[Call] = []
        try:
            with acts.listening(said):
                outcome = act(folder, n, error, said)
            calls = self._shim.calls
            told = outcome in {"saved", "warm"} or said.names(folder)
            assert told or _is_compilers(calls, n), "nothing names the path and the errno"
            forget()
            acts.verify(folder, indexed=outcome in {"saved", "warm"})
            again = start(folder)
            assert again.misses == {}, again
            assert again.hits.get("inductor") == 1, again
            acts.verify(folder)
        except BaseException as exc:
            calls = calls or self._shim.calls
            call = calls[n - 1] if 0 < n <= len(calls) else None
            raise AssertionError(f"call {n}, {call}, {error}, in {outcome}: {said.warnings}") from exc
        finally:
            forget()
        shutil.rmtree(folder)
        return outcome, calls

    def cold(self, folder: Path, n: int, error: str, said: acts.Said) -> str:
        """Compile and save; what could not be saved is saved as soon as nothing fails any more."""
        module = Product()
        with self._shim.fault(n, FAIL, error):
            session = cachekit.attach(module, dir=folder)
            run(session, module)
            session.save(wait=True)
        report = session.report()
        said.warnings += report.reasons
        how = compiled(report)
        if report.state == "disabled":
            session.close()
            start(folder)
            return how or "no cache"
        if not report.saved_generations:
            session.save(wait=True)
            assert session.report().saved_generations, session.report()
        session.close()
        if not report.saved_generations:
            return f"{how}not saved, kept"
        missing = any("not updated" in reason or "not remembered" in reason for reason in report.reasons)
        return f"{how}saved" + (", not indexed" if missing else "")

    def warm(self, folder: Path, n: int, error: str, said: acts.Said) -> str:
        """Start on what is kept."""
        module = Product()
        with self._shim.fault(n, FAIL, error):
            session = cachekit.attach(module, dir=folder)
            run(session, module)
        report = session.report()
        said.warnings += report.reasons
        session.close()
        if report.state == "disabled":
            return compiled(report) or "no cache"
        return compiled(report) + ("warm" if not report.misses and report.hits else "cold start")


def start(folder: Path) -> Report:
    """A whole session, nothing failing."""
    module = Product()
    with cachekit.attach(module, dir=folder) as session:
        run(session, module)
    forget()
    return session.report()


def main(work: Path, *, everything: bool) -> dict[str, Any]:
    """Both kinds of session: rows of (while, call, on, {errno: outcomes})."""
    torch.set_num_threads(1)
    shim = Shim(work)
    start(work / "warm up")
    acts.verify(work / "warm up")
    kept = Sessions(shim, work / "warm")
    start(kept.base)
    new = Sessions(shim, work / "cold")
    rows: dict[tuple[str, Call], dict[str, list[str]]] = {}
    cases = 0
    for name, sessions, act in (("first start", new, new.cold), ("later start", kept, kept.warm)):
        _, calls = sessions.case(act, 0, "EIO")
        for number, call in enumerate(sorted(set(calls))):
            private = call.place in PRIVATE
            one = (ERRNOS[number % len(ERRNOS)],)
            for error in ERRNOS if private and everything else one if private or everything else ():
                outcome, _ = sessions.case(act, calls.index(call) + 1, error)
                rows.setdefault((name, call), {}).setdefault(error, []).append(outcome)
                cases += 1
    return {
        "rows": [[name, call.name, call.place, seen] for (name, call), seen in rows.items()],
        "cases": cases,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), everything="all" in sys.argv[2:])))
