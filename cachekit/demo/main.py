"""``cachekit demo``: two real pipelines with random weights, started cold and warm in processes of their own.

For each pipeline four processes share nothing but cachekit's folder; each has an empty private folder and empty compile
caches, as on a machine that was just started:

* A generates at the first size with nothing kept, and saves;
* B generates at the first size, warm;
* C generates at a second size. A U-Net is compiled for each size, so it compiles and saves again; a transformer is
  compiled for sizes in general, and takes what is there;
* D generates at both sizes, warm.

The JSON document is ``{"pipelines": [row, ...]}``, a row being that of `cachekit.demo.outcome.row`; where a process
failed there is ``"failed"`` as well, with why and the end of its standard error.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cachekit.demo import outcome, screen
from cachekit.demo.children import Failure
from cachekit.demo.children import run as run_child
from cachekit.demo.models import DEMOS, DemoPipeline
from cachekit.demo.start import Spec, Started
from cachekit.errors import ConfigurationError, StoreError, UnsupportedError
from cachekit.settings import Settings

_LIBRARIES = ("torch", "diffusers", "transformers", "gguf", "accelerate")
_DOES = {
    "A": "cold start",
    "B": "warm start, new process",
    "C": "second size, new process",
    "D": "both sizes, new process",
}


@dataclass
class Answer:
    """What is known so far."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        """Whether everything covered was warm and bit-identical."""
        return not self.failed and not any(row["problems"] for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The JSON document."""
        return {"pipelines": self.rows, **({"failed": self.failed} if self.failed else {})}


def run(
    *,
    directory: str | os.PathLike[str] | None = None,
    keep: bool = False,
    pipelines: Sequence[str] | None = None,
    as_json: bool = False,
) -> int:
    """Run the demonstration; takes about three minutes on two cores, and shows what it is doing on standard error.

    Args:
        directory: where everything goes, and stays: a folder that is empty or does not exist.
        keep: keep the temporary folder that is used where no ``directory`` is given, and tell where it is.
        pipelines: names of those to run; all by default.
        as_json: write the JSON document to standard output instead of a table.

    Returns:
        0 if everything covered was warm and bit-identical, else 1.

    Raises:
        ConfigurationError: there is no such pipeline, or ``directory`` holds something already.
        UnsupportedError: this is not Linux, or a library or the C++ compiler is missing.
        StoreError: ``directory`` cannot be used.
    """
    demos = _chosen(pipelines)
    _check_machine()
    with _folder(directory, keep=keep) as folder:
        show = screen.Screen()
        answer = _demonstrate(demos, folder, show)
        if as_json:
            sys.stdout.write(json.dumps(answer.to_json(), indent=2) + "\n")
        elif answer.rows:
            _draw(demos, answer)
        if keep or directory is not None:
            show.say(f"kept: cachekit ls --dir {shlex.quote(str(folder / 'cachekit'))}")
    return 0 if answer.fine else 1


def _demonstrate(demos: Sequence[DemoPipeline], folder: Path, show: screen.Screen) -> Answer:
    answer = Answer()
    began = time.monotonic()
    spec = json.dumps({"build": [demo.name for demo in demos], "folder": str(folder / "models")})
    with show.working("making pipelines with random weights") as doing:
        built = run_child(spec, folder=folder / "processes" / "build", doing=doing)
    if isinstance(built, Failure):
        _failed(answer, show, "all", "build", built)
        return answer
    for demo in demos:
        show.say(demo.title)
        starts = _starts(demo, folder, show, answer)
        if len(starts) == len(
            outcome.PROCESSES
        ):  # else it is told by then; the next pipeline may fare better
            kept = _kept(folder / "cachekit", starts["D"]["report"]["fingerprint"])
            answer.rows.append(outcome.row(demo, starts, kept))
    show.say(f"done in {time.monotonic() - began:.0f} s")
    return answer


def _starts(demo: DemoPipeline, folder: Path, show: screen.Screen, answer: Answer) -> dict[str, Started]:
    """Run A to D of one pipeline, as far as the first that fails."""
    starts: dict[str, Started] = {}
    for process in outcome.PROCESSES:
        sizes = outcome.sizes_of(demo, process)
        title = f"  {process}  {_DOES[process]}, {' and '.join(f'{w} × {h}' for w, h in sizes)}"
        spec = Spec(process, demo.name, str(folder / "models" / demo.name), str(folder / "cachekit"), sizes)
        own = folder / "processes" / f"{demo.name}-{process}"
        with show.working(title) as doing:
            found = run_child(spec.to_json(), folder=own, doing=doing)
        if isinstance(found, Failure):
            _failed(answer, show, demo.name, process, found)
            break
        starts[process] = cast("Started", found)
        show.say(f"{title}: {starts[process]['first_s']:.1f} s; {outcome.told(starts[process])}")
    return starts


def _kept(folder: Path, fingerprint: str | None) -> outcome.Kept:
    """What the store holds for the pipeline."""
    from cachekit.store.fetch import fetch
    from cachekit.store.keys import trusted
    from cachekit.store.local import DirectoryStore

    settings = Settings(dir=folder)
    if fingerprint is None:  # no session ever got that far
        return outcome.Kept()
    store = DirectoryStore(settings.store_root, namespace=settings.namespace)
    return outcome.Kept.of(fetch(store, fingerprint, trusted(settings.keys_root)))


def _failed(answer: Answer, show: screen.Screen, name: str, process: str, failure: Failure) -> None:
    answer.failed.append({"name": name, "process": process, "why": failure.why, "stderr": failure.stderr})
    show.say(f"  {process} failed, {failure.why}; the end of its standard error:")
    for line in failure.stderr.splitlines():
        show.say(f"    {line}")


def _draw(demos: Sequence[DemoPipeline], answer: Answer) -> None:
    screen.table(answer.rows)
    by_name = {demo.name: demo for demo in demos}
    out = screen.console(sys.stdout)
    for row in answer.rows:
        out.print()
        out.print(outcome.meaning(by_name[row["name"]], row), soft_wrap=True)


def _chosen(names: Sequence[str] | None) -> list[DemoPipeline]:
    known = [demo.name for demo in DEMOS]
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise ConfigurationError(f"no such pipeline: {', '.join(unknown)}; there are {', '.join(known)}")
    return [demo for demo in DEMOS if not names or demo.name in names]


def _check_machine() -> None:
    """Say at once what would otherwise be found out minutes later. Raises UnsupportedError."""
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f"compiled pipelines are cached on Linux only, and this is {sys.platform}")
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"not installed: {', '.join(missing)}; pip install 'torch-cachekit[diffusers]' brings them"
        )
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise UnsupportedError(
            f"there is no C++ compiler ({compiler}), without which torch.compile cannot compile for a CPU"
        )


@contextlib.contextmanager
def _folder(directory: str | os.PathLike[str] | None, *, keep: bool) -> Iterator[Path]:
    """The folder to work in: the one given, or a temporary one that is removed at the end unless it is to be kept."""
    if directory is None and not keep:
        with tempfile.TemporaryDirectory(prefix="cachekit-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    if directory is None:
        yield Path(tempfile.mkdtemp(prefix="cachekit-demo-"))
        return
    folder = Path(directory).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as exc:
        raise StoreError(f"cannot use {folder}: {exc.strerror}") from exc
    if taken:
        raise ConfigurationError(
            f"{folder} is not empty: what lies there could make the cold start a warm one"
        )
    yield folder
