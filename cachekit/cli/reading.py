"""Reading all artifacts of a bundle, a bounded number of bytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from cachekit.bundle.artifact import Artifact
from cachekit.bundle.bundle import Bundle, Entry
from cachekit.bundle.coverage import Coverage
from cachekit.cli.output import Output
from cachekit.store.base import Store
from cachekit.store.fetch import Loaded, read_artifacts

if TYPE_CHECKING:
    from rich.progress import Progress

BATCH_BYTES = 64 * 2**20
"""Raw bytes held at once, unless one artifact alone has more."""


def batches(bundle: Bundle) -> Iterator[tuple[Entry, ...]]:
    """The entries in order, in runs of at most `BATCH_BYTES` raw bytes."""
    run: list[Entry] = []
    used = 0
    for entry in bundle.entries:
        if run and used + entry.raw_size > BATCH_BYTES:
            yield tuple(run)
            run, used = [], 0
        run.append(entry)
        used += entry.raw_size
    if run:
        yield tuple(run)


def loaded(bar: Progress, store: Store, bundle: Bundle) -> Iterator[Loaded]:
    """What reading the bundle's artifacts gives, batch by batch, with the raw bytes done shown in ``bar``."""
    total = sum(entry.raw_size for entry in bundle.entries)
    task = bar.add_task(bundle.fingerprint_id[:12], total=total)
    for run in batches(bundle):
        part = replace(bundle, entries=run, spare=(), coverage=Coverage())
        yield read_artifacts(store, part, lambda entry: True)
        bar.advance(task, sum(entry.raw_size for entry in run))
    bar.remove_task(task)


def artifacts_of(out: Output, store: Store, bundle: Bundle) -> Iterator[Artifact]:
    """The bundle's artifacts. Raises what is wrong with the first one that cannot be read."""
    with out.progress() as bar:
        for part in loaded(bar, store, bundle):
            for problem in part.problems:
                raise problem.error
            yield from part.artifacts
