"""``python -m benchmarks [warm-start|cost] [options]``: what ``make bench`` runs; without a name, both in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks import warm_start
from benchmarks.cost import run as cost

BENCHMARKS: dict[str, Callable[[Sequence[str]], int]] = {"warm-start": warm_start.main, "cost": cost.main}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that is named first; with options alone the first one, with nothing all of them."""
    if arguments and arguments[0] in BENCHMARKS:
        return BENCHMARKS[arguments[0]](arguments[1:])
    if arguments:
        return warm_start.main(arguments)
    return max(benchmark([]) for benchmark in BENCHMARKS.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
