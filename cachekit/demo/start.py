"""One start of one pipeline, in a process of its own: ``python -m cachekit.demo.start SPEC``, SPEC being JSON.

It writes JSON lines to standard output: ``{"doing": text}`` when it begins something, and one ``{"result": ...}`` at
the end. Whatever libraries and compilers print goes to standard error. ``{"build": ...}`` in place of a start makes the
pipelines' folders.

The clock runs from the call of ``attach`` to the end of the first generation. Importing torch, diffusers and the hooks
and loading the pipeline come before it; what torch imports only while it compiles is inside.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from cachekit.demo.compilers import CompilerRuns
from cachekit.demo.models import DEMOS, DemoPipeline, generate

if TYPE_CHECKING:
    import torch

Tell = Callable[[Mapping[str, Any]], None]


class Generation(TypedDict):
    """One generation: width and height in pixels, seconds, and the sha256 of its latents."""

    width: int
    height: int
    seconds: float
    sha256: str
    state: str
    """The session's, after the generation and before the save."""


class Started(TypedDict):
    """What one start did. Times in seconds."""

    process: str
    import_s: float
    attach_s: float
    first_s: float
    """From the call of ``attach`` to the end of the first generation."""
    save_s: float
    generations: list[Generation]
    cxx_compiles: int
    isa_probes: int
    kernel_compiles: int
    report: dict[str, Any]
    """``Session.report()`` after the last save."""
    counters: dict[str, dict[str, int]]
    """torch's own cache counters, of the whole process."""


@dataclass(frozen=True)
class Spec:
    """Which start: the pipeline ``name`` out of ``folder``, with cachekit's own folder, sizes in pixels."""

    process: str
    name: str
    folder: str
    cachekit: str
    sizes: tuple[tuple[int, int], ...]

    def to_json(self) -> str:
        """The text that `main` reads."""
        return json.dumps(asdict(self))


def build(folder: Path, names: list[str], tell: Tell) -> None:
    """Make the named pipelines below ``folder``."""
    for demo in DEMOS:
        if demo.name in names:
            tell({"doing": f"making {demo.name}"})
            demo.build(folder / demo.name)


def start(spec: Spec, tell: Tell) -> Started:
    """Load the pipeline, attach, generate each size and save after it; everything is waited for."""
    demo = demo_of(spec.name)
    runs = CompilerRuns()
    runs.watch()
    tell({"doing": "importing"})
    began = time.perf_counter()
    import diffusers  # noqa: F401
    import torch  # noqa: F401

    import cachekit.hooks
    from cachekit.runtime import counters

    import_s = time.perf_counter() - began
    tell({"doing": "loading the pipeline"})
    pipe = demo.load(Path(spec.folder))

    began = time.perf_counter()
    # Saved when told to, below, so that the state that a generation leaves can be seen.
    session = cachekit.hooks.attach(pipe, dir=spec.cachekit, save="close")
    attach_s = time.perf_counter() - began
    generations: list[Generation] = []
    first_s = save_s = 0.0
    for width, height in spec.sizes:
        tell({"doing": f"generating {width} × {height}"})
        clock = time.perf_counter()
        latents = generate(pipe, width, height)
        done = time.perf_counter()
        first_s = first_s or done - began
        generations.append(_generation(width, height, done - clock, latents, session.state))
        tell({"doing": "saving"})
        session.save(wait=True)
        save_s += time.perf_counter() - done
    report = session.report().to_json()
    tell({"doing": "ending"})
    session.close()
    return Started(
        process=spec.process,
        import_s=import_s,
        attach_s=attach_s,
        first_s=first_s,
        save_s=save_s,
        generations=generations,
        cxx_compiles=runs.compiles,
        isa_probes=runs.probes,
        kernel_compiles=report["misses"].get("kernel", 0),
        report=report,
        counters={group: dict(found) for group, found in counters.snapshot().items()},
    )


def demo_of(name: str) -> DemoPipeline:
    """The pipeline of that name."""
    return next(demo for demo in DEMOS if demo.name == name)


def _generation(width: int, height: int, seconds: float, latents: torch.Tensor, state: str) -> Generation:
    data = latents.contiguous().numpy().tobytes()
    digest = hashlib.sha256(data).hexdigest()
    return Generation(width=width, height=height, seconds=seconds, sha256=digest, state=state)


def _only_ours() -> Tell:
    """Keep standard output for our lines; what others print goes to standard error."""
    ours = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(line: Mapping[str, Any]) -> None:
        ours.write(json.dumps(line) + "\n")
        ours.flush()

    return tell


def main(text: str) -> None:
    """Do what the JSON text says."""
    tell = _only_ours()
    given = json.loads(text)
    if "build" in given:
        build(Path(given["folder"]), given["build"], tell)
        tell({"result": {}})
        return
    given["sizes"] = tuple((width, height) for width, height in given["sizes"])
    tell({"result": start(Spec(**given), tell)})


if __name__ == "__main__":
    main(sys.argv[1])
