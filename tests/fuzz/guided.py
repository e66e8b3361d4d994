"""The process that Atheris runs in: one target, coverage-guided, within bounds of memory and time.

    python -m tests.fuzz.guided <target> [options of libFuzzer] [corpus folders]

What is instrumented is imported after Atheris and nothing of it before, so this module imports no target on top.
"""

from __future__ import annotations

import logging
import random
import resource
import sys

_INSTRUMENTED = ["cachekit.bundle", "cachekit.store", "cachekit.identity.fingerprint"]
_ADDRESS_SPACE = 4 << 30


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    import atheris

    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    with atheris.instrument_imports(include=_INSTRUMENTED):
        from tests.fuzz import mutate, targets

    logging.disable(logging.CRITICAL)
    name = sys.argv.pop(1)
    target = targets.TARGETS[name]

    def once(data: bytes) -> None:
        try:
            target(data)
        except targets.Refused:
            return

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return mutate.of(name, bytes(data), rng)[:max_size]

    # A merge starts itself again through a shell, by the first word of its command line.
    sys.argv[0] = f"{sys.executable} -m tests.fuzz.guided {name}"
    atheris.Setup(sys.argv, once, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
