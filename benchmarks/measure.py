"""One start of one denoiser, in a process of its own; writes what it measured as JSON.

    python -m benchmarks.measure --denoiser sdxl --row warm --work FOLDER --result FILE

Every row does the same before the clock starts: import, build the module on its device, run each shape once eagerly.
The clock then runs from the call that brings the cache (``cachekit.attach`` or ``load_cache_artifacts``) to the end
of the first compiled step, device synchronised.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.children import write_json
from benchmarks.starts import ROWS, Start, start_of

STEADY_RUNS = 5

_started = time.perf_counter()


class Measurement:
    """One row's facts as they come; ``write`` is given all that is known so far after each phase."""

    def __init__(self, denoiser: Any, synchronise: Callable[[], None], write: Callable[[Any], None]) -> None:
        self._denoiser = denoiser
        self._synchronise = synchronise
        self._write = write
        self._inputs = {shape: denoiser.inputs(shape) for shape in denoiser.shapes}
        self._eager: dict[Any, Any] = {}
        self.facts: dict[str, Any] = {"shapes": {label(shape): {} for shape in denoiser.shapes}}

    def eager(self) -> None:
        """The reference of every shape, and what a step costs without compiling."""
        for shape in self._denoiser.shapes:
            facts = self.facts["shapes"][label(shape)]
            self._eager[shape], facts["eager_first_s"] = self._timed(shape)
            facts["eager_step_s"] = self._steady(shape)
            say(f"{label(shape)} eager: first step {facts['eager_first_s']:.2f} s")
        self._write(self.facts)

    def compiled(self, start: Start, *, outputs: Path, keep: bool) -> None:
        """Begin, run every shape, save after each. ``outputs`` has the cold start's, or with ``keep`` gets them."""
        clock = time.perf_counter()
        self.facts["begin"] = start.begin(self._denoiser.module, regional=self._denoiser.regional)
        for index, shape in enumerate(self._denoiser.shapes):
            facts, before = self.facts["shapes"][label(shape)], _counters()
            output, facts["first_call_s"] = self._timed(shape)
            facts["first_step_s"] = time.perf_counter() - clock if index == 0 else facts["first_call_s"]
            say(f"{label(shape)} compiled: first step {facts['first_step_s']:.2f} s")
            facts["counters"] = _moved(before, _counters())
            facts["relative_error"] = _relative_error(output, self._eager[shape])
            facts |= _against_cold(output, outputs / f"{label(shape)}.pt", keep=keep)
            facts |= start.ran(shape)
            facts["step_s"] = self._steady(shape)
            self._write(self.facts)
        self.facts["end"] = start.end()
        self._write(self.facts)

    def _timed(self, shape: Any) -> tuple[Any, float]:
        return timed(lambda: self._denoiser.module(**self._inputs[shape])[0], self._synchronise)

    def _steady(self, shape: Any) -> float:
        """Median seconds of a step that has run before."""
        return statistics.median(self._timed(shape)[1] for _ in range(STEADY_RUNS))


def timed(step: Callable[[], Any], synchronise: Callable[[], None]) -> tuple[Any, float]:
    """(what ``step`` returned, seconds until the device was done with it)."""
    synchronise()
    started = time.perf_counter()
    value = step()
    synchronise()
    return value, time.perf_counter() - started


def measure(row: str, name: str, *, tiny: bool, work: Path, write: Callable[[Any], None]) -> None:
    """Run one row of one denoiser."""
    import torch
    import torch._dynamo.utils

    from benchmarks import denoisers
    from benchmarks.environment import torch_facts

    scale = denoisers.Scale.of(tiny=tiny)
    synchronise: Callable[[], None] = torch.cuda.synchronize if scale.device == "cuda" else _nothing
    import_s = time.perf_counter() - _started
    denoiser, build_s = timed(lambda: denoisers.build(name, scale), synchronise)
    measurement = Measurement(denoiser, synchronise, write)
    measurement.facts |= {"torch": torch_facts(), "import_s": import_s, "build_s": build_s}
    start = start_of(row, work)
    with torch.no_grad():
        measurement.eager()
        measurement.compiled(start, outputs=work, keep=row == "cold")


def label(shape: tuple[int, int, int]) -> str:
    """``1024x1024x1``: width and height in pixels, images a call."""
    return "x".join(map(str, shape))


def say(text: str) -> None:
    """Tell the person who waits."""
    print(f"    {text}", flush=True)


def _nothing() -> None:
    """The CPU is done when the call returns."""


def _counters() -> dict[str, int]:
    from torch._dynamo.utils import counters

    return {
        f"{group}.{name}": count
        for group in ("inductor", "aot_autograd")
        for name, count in counters[group].items()
        if "cache" in name
    }


def _moved(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {
        name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)
    }


def _relative_error(output: Any, reference: Any) -> float:
    """Norm of the difference over the norm of ``reference``, in float32."""
    exact = reference.float()
    return float((output.float() - exact).norm() / exact.norm())


def _against_cold(output: Any, path: Path, *, keep: bool) -> dict[str, Any]:
    """Whether ``output`` equals the cold start's bit for bit, and by how much it differs; that start keeps its own."""
    import torch

    output = output.cpu()
    if keep:
        torch.save(output, path)
    if keep or not path.exists():
        return {}
    cold = torch.load(path, weights_only=True)
    return {
        "bit_identical": bool(torch.equal(output, cold)),
        "largest_difference": float((output.float() - cold.float()).abs().max()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one row."""
    parser = argparse.ArgumentParser(description="One start of one denoiser.")
    parser.add_argument("--denoiser", required=True)
    parser.add_argument("--row", required=True, choices=ROWS)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--result", required=True, type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    measure(
        given.row,
        given.denoiser,
        tiny=given.tiny,
        work=given.work,
        write=lambda result: write_json(given.result, result),
    )


if __name__ == "__main__":
    main()
