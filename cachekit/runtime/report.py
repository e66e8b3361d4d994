"""The proof: what a session found, hit and saved, as one value. Pure; gathered by ``session``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """What happened in one session so far. Times in seconds, sizes in bytes.

    ``hits``, ``misses`` and ``bypasses`` come from torch's counters, by kind; ``misses`` is what had to be compiled.
    ``effective`` is measured: None before the first call of a covered shape, True if artifacts were hit and
    installing them plus the first calls took less time than the recorded cold compile of the same units, else False.
    A unit counts once, and only if it came with the installed bundle: finding again what the session compiled itself
    saves nothing.
    """

    state: str
    mode: str
    fingerprint: str | None = None
    generation: int | None = None
    installed: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Why artifacts of the bundle were not installed on this host -> how many."""
    hits: Mapping[str, int] = field(default_factory=dict)
    misses: Mapping[str, int] = field(default_factory=dict)
    bypasses: Mapping[str, int] = field(default_factory=dict)
    load_s: float = 0.0
    """Finding, verifying and installing the bundle."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """Where ``load_s`` went, in seconds: ``find`` (head, signature, document), ``kernels``, ``read`` (files, digests,
    unpacking, scan), ``imports`` (of torch's, which compiling needs as well), ``encode`` and ``torch`` (its own
    loader). ``read`` runs beside those after it."""
    first_calls_s: float = 0.0
    """Calls of the denoiser in which something was compiled or looked up."""
    covered_calls_s: float = 0.0
    """Those of them that the installed bundle covered, each unit's first."""
    cold_s: float = 0.0
    """What the same units cost when they were compiled cold, as recorded in the bundle."""
    effective: bool | None = None
    inert: bool = False
    shapes: tuple[str, ...] = ()
    """Shapes covered by the bundle as it is now."""
    saved_generations: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    """Everything worth knowing about why something was not hit, not installed or not saved."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """torch's cache counters as they moved in this session's compiles."""

    @property
    def saved_s(self) -> float:
        """Seconds saved against the recorded cold compile; 0 unless it is ``effective``."""
        if not self.effective:
            return 0.0
        return gain(self.cold_s, load_s=self.load_s, covered_calls_s=self.covered_calls_s)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "saved_s": self.saved_s}

    def __str__(self) -> str:
        """One line per start."""
        if self.fingerprint is None:
            return f"{self.state}: {'; '.join(self.reasons) or 'nothing happened yet'}"
        return (
            f"{self.state} {self.fingerprint[:12]} generation {self.generation or 'none'}: "
            f"installed {_counts(self.installed)}; hit {_counts(self.hits)}; compiled {_counts(self.misses)}; "
            f"load {self.load_s:.2f} s, first calls {self.first_calls_s:.2f} s, saved {self.saved_s:.2f} s"
            + "".join(f"; {reason}" for reason in self.reasons)
        )


def gain(cold_s: float, *, load_s: float, covered_calls_s: float) -> float:
    """Seconds that a bundle saved: what its units had cost cold, less installing them and the calls they covered."""
    return max(0.0, cold_s - load_s - covered_calls_s)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "nothing"
