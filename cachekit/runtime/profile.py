"""One fingerprint as a session knows it: its bundle, what the session adds to it, and what is still to be saved.

Turns what the recorder filed (torch's words) into artifacts with guards and requirements. No IO and no torch: the
kernels' bytes are read by the saver, through ``kernel_paths``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cachekit.bundle import (
    TORCH_KINDS,
    Artifact,
    Bundle,
    Coverage,
    Requires,
    Shape,
    ShapeRow,
    Unit,
    guards_of,
    has_cpp,
    partners_of,
    requires,
)
from cachekit.identity import Fingerprint
from cachekit.runtime.forks import held_here, renew_in_child
from cachekit.runtime.recorder import Window


@dataclass(frozen=True)
class Pending:
    """What one save takes out of a profile."""

    artifacts: tuple[Artifact, ...]
    kernel_paths: frozenset[str]
    units: tuple[tuple[Unit, frozenset[str]], ...]
    """Units with the kernel paths each needs beside its ``needs``."""
    shapes: tuple[ShapeRow, ...]

    def __bool__(self) -> bool:
        return bool(self.artifacts or self.kernel_paths or self.units or self.shapes)


_NOTHING = Pending((), frozenset(), (), ())


@dataclass
class Needs:
    """What one graph or call used. ``graphs`` and ``tuned`` are artifact identities, ``kernels`` paths.

    Values tell whether it had to be made now.
    """

    graphs: set[str] = field(default_factory=set)
    tuned: dict[str, bool] = field(default_factory=dict)
    kernels: dict[str, bool] = field(default_factory=dict)

    def add(self, other: Needs) -> None:
        """Take over everything ``other`` has."""
        self.graphs |= other.graphs
        self.tuned |= other.tuned
        self.kernels |= other.kernels

    @property
    def identities(self) -> tuple[str, ...]:
        """Of artifacts that torch records, sorted."""
        return tuple(sorted({*self.graphs, *self.tuned}))


class Profile:
    """Thread-safe: the generating thread adds, the saver takes."""

    def __init__(
        self,
        fingerprint: Fingerprint,
        cpp_requirements: Mapping[str, str],
        bundle: Bundle | None,
        *,
        damaged: Collection[str] = (),
        offer_all: bool = False,
        refused: bool = False,
        changed_from: Fingerprint | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self.bundle = bundle
        self.found = bundle is not None
        """Whether it began with a bundle; ``bundle`` is also what the session saved since."""
        self.refused = refused
        """A bundle is kept, or may be, and could not be used."""
        self.changed_from = changed_from
        """Who the pipeline was before it was changed into this one, if that happened while it was attached."""
        self._usable = _usable(bundle, frozenset(damaged))
        self._listed = frozenset(unit.id for unit in bundle.coverage.units) if bundle else frozenset()
        self._claimed: set[str] = set()
        self._cpp = requires(cpp_requirements)
        self._lock = threading.RLock()
        self._to_offer_again = frozenset(damaged)
        self._known: set[str] = set()
        self._kept: set[str] = set()
        self._kept_kernels: set[str] = set()
        self._requires: dict[str, Requires] = {}
        self._kept_units: dict[str, Unit] = {}
        self._new: dict[str, Artifact] = {}
        self._new_kernels: set[str] = set()
        self._new_units: dict[str, tuple[Unit, frozenset[str]]] = {}
        self._new_shapes: dict[Shape, set[str]] = {}
        self._used: set[str] = set()
        self._uncounted: set[str] = set()
        self._in_save = _NOTHING
        self._meanwhile: dict[str, Artifact] = {}
        renew_in_child(self)
        if bundle is not None:
            if offer_all:
                self._to_offer_again = frozenset(entry.identity.id for entry in bundle.entries)
            self.adopt(bundle)

    def adopt(self, bundle: Bundle) -> None:
        """Make ``bundle`` what is already kept: what it holds is no longer new, unless it is to be offered again."""
        # Digests of thousands of entries take long: before the lock, for which the generating thread would wait.
        known = {entry.identity.id: entry for entry in bundle.entries}
        units = {unit.id: unit for unit in bundle.coverage.units}
        kept = known.keys() - self._to_offer_again  # another host's kernel has the same path as ours
        kernels = {known[identity].key for identity in kept if known[identity].kind == "kernel"}
        needed = {entry.key: entry.requires for entry in reversed(bundle.entries) if entry.kind == "inductor"}
        with self._lock:
            self.bundle, self._kept_units, self._in_save = bundle, units, _NOTHING
            self._meanwhile.clear()
            self._known |= known.keys()
            self._kept |= kept
            self._kept_kernels |= kernels
            self._requires = needed | self._requires

    def absorb(self, window: Window) -> Needs:
        """File what a call looked up or made; returns what it used. What the bundle lacks becomes new."""
        needs = Needs(kernels=dict(window.kernels))
        with self._lock:
            for artifact in self._translated(window):
                identity = artifact.identity.id
                if artifact.kind == "autotune":
                    needs.tuned[identity] = identity not in self._known
                else:
                    needs.graphs.add(identity)
                if identity not in self._kept:
                    self._new[identity] = artifact  # of two results for one kernel the last one is in use
                elif self._in_save:
                    self._meanwhile[identity] = artifact  # and would be lost if the save fails
            self._new_kernels |= needs.kernels.keys() - self._kept_kernels
        return needs

    def _translated(self, window: Window) -> list[Artifact]:
        """torch's artifacts as ours; ``inductor`` first, because ``aot_autograd`` inherits its requirements."""
        found: list[Artifact] = []
        order = {kind: rank for rank, kind in enumerate(TORCH_KINDS)}
        kept = [item for item in window.artifacts if item[0] in order]
        for kind, key, data in sorted(kept, key=lambda item: order[item[0]]):
            needed: Requires = ()
            if kind == "inductor":
                needed = self._cpp if has_cpp(data) else ()
                self._requires[key] = needed
            elif kind == "aot_autograd":
                needed = next((r for r in map(self._requires.get, sorted(partners_of(data))) if r), ())
            found.append(Artifact(kind, key, data, guards=guards_of(kind, data), requires=needed))
        return found

    def unit_for(self, needs: Needs) -> Unit | None:
        """The unit that was recorded for a graph made of these artifacts, if any.

        Autotuning does not count: when its results are looked up depends on threads.
        """
        with self._lock:
            units = self.known_units().values() if needs.graphs else ()
            found = [unit for unit in units if needs.graphs <= set(unit.needs)]
            return min(found, key=lambda unit: (len(unit.needs), unit.id), default=None)

    def units_for(self, needs: Needs) -> tuple[str, ...]:
        """The id of `unit_for`, if there is one."""
        found = self.unit_for(needs)
        return (found.id,) if found is not None else ()

    def add_unit(self, unit: Unit, kernels: Iterable[str]) -> None:
        """A unit that was compiled now; one that is already known is left as it was recorded cold."""
        with self._lock:
            if unit.id not in self.known_units():
                self._new_units.setdefault(unit.id, (unit, frozenset(kernels)))

    def known_units(self) -> dict[str, Unit]:
        """Every unit of the bundle and of this session, by id."""
        with self._lock:
            added = (*self._in_save.units, *self._new_units.values())
            return {unit.id: unit for unit, _ in added} | self._kept_units

    def add_shape(self, shape: Shape, unit_ids: Iterable[str]) -> None:
        """A labelled shape ran with these units. Rows are alternatives, so a new one names all that the shape ran."""
        with self._lock:
            ran = self._new_shapes.get(shape, set()) | set(unit_ids)
            if not ran:
                return  # nothing was compiled for it: a row without units would claim that it is covered
            if not any(row.shape == shape and ran <= set(row.unit_ids) for row in self._rows()):
                self._new_shapes[shape] = ran

    def claim(self, unit_ids: Iterable[str]) -> list[float] | None:
        """A call with these units compiled: the cold seconds of those that came installed and were not claimed before.

        None where there is nothing to claim: a unit was made here, or all of them ran before, so that torch may have
        found what this session compiled itself.
        """
        with self._lock:
            wanted = set(unit_ids)
            fresh = wanted - self._claimed
            self._claimed |= wanted
            covered = bool(fresh) and wanted <= self._usable.keys()
            return [self._usable[unit] for unit in sorted(fresh)] if covered else None

    def forgo(self, needs: Needs) -> None:
        """A graph was compiled outside of a call that ended well: nothing is claimed for its unit any more."""
        with self._lock:
            self._claimed.update(self.units_for(needs))

    @property
    def ran(self) -> bool:
        """Whether anything was compiled or looked up for it."""
        return bool(self._claimed)

    def covers(self, unit_ids: Iterable[str]) -> bool:
        """Whether the bundle that was found lists all of these units, be they usable on this host or not."""
        return set(unit_ids) <= self._listed

    def usable(self, unit_ids: Iterable[str]) -> bool:
        """Whether all that these units need was installed here."""
        return set(unit_ids) <= self._usable.keys()

    def use(self, unit_ids: Iterable[str]) -> None:
        """These units ran in this session; how often does not matter, a start saves their seconds once."""
        with self._lock:
            new = set(unit_ids) - self._used
            self._used |= new
            self._uncounted |= new

    def take_uses(self) -> frozenset[str]:
        """The units that ran and were not taken before."""
        with self._lock:
            taken, self._uncounted = frozenset(self._uncounted), set()
        return taken

    @property
    def uncounted(self) -> bool:
        """Whether `take_uses` has any."""
        return bool(self._uncounted)

    @property
    def dirty(self) -> bool:
        """Something was compiled that no kept bundle holds. Labels alone do not make a session dirty."""
        with self._lock:
            return bool(self._new or self._new_kernels or self._new_units)

    @property
    def saving(self) -> bool:
        """A save of it is in progress."""
        return bool(self._in_save)

    @property
    def held_here(self) -> bool:
        """Whether the calling thread was interrupted in here: a save would wait for it."""
        return held_here(self._lock)

    @property
    def unsaved(self) -> bool:
        """Something to save, be it only the label of a shape."""
        with self._lock:
            return self.dirty or bool(self._new_shapes)

    def take(self) -> Pending:
        """Everything new, to be saved; :meth:`give_back` returns it if saving fails."""
        with self._lock:
            pending = Pending(
                tuple(self._new.values()),
                frozenset(self._new_kernels),
                tuple(self._new_units.values()),
                tuple(ShapeRow(shape, tuple(sorted(ids))) for shape, ids in self._new_shapes.items()),
            )
            self._kept |= self._new.keys()
            self._new, self._new_kernels, self._new_units, self._new_shapes = {}, set(), {}, {}
            self._kept_kernels |= pending.kernel_paths
            self._in_save = pending
        return pending

    def give_back(self, pending: Pending) -> None:
        """A save failed: what it took is new again."""
        with self._lock:
            self._in_save = _NOTHING
            for artifact in pending.artifacts:
                identity = artifact.identity.id
                self._new.setdefault(identity, self._meanwhile.get(identity, artifact))
                self._kept.discard(identity)
            self._meanwhile.clear()
            self._new_kernels |= pending.kernel_paths
            self._kept_kernels -= pending.kernel_paths
            for unit, kernels in pending.units:
                self._new_units.setdefault(unit.id, (unit, kernels))
            for row in pending.shapes:
                self._new_shapes.setdefault(row.shape, set()).update(row.unit_ids)

    def shapes(self) -> list[Shape]:
        """Shapes of the bundle and of this session, sorted."""
        with self._lock:
            rows, added = self._rows(), list(self._new_shapes)
        return sorted({*(row.shape for row in rows), *added})

    def _rows(self) -> tuple[ShapeRow, ...]:
        """Of the bundle, and of a save in progress."""
        return (*(self.bundle.coverage.shapes if self.bundle else ()), *self._in_save.shapes)


def _usable(bundle: Bundle | None, damaged: frozenset[str]) -> dict[str, float]:
    """Cold seconds by unit, of the units all of whose needs were installed."""
    found: dict[str, float] = {}
    for unit in bundle.coverage.units if bundle is not None else ():
        if damaged.isdisjoint(unit.needs):
            found[unit.id] = min(unit.seconds, found.get(unit.id, unit.seconds))
    return found


def coverage_of(pending: Pending, kernel_ids: Mapping[str, str], probe_ids: Iterable[str]) -> Coverage:
    """The coverage to publish: units with the identities of their kernels added.

    ``kernel_ids`` maps a kernel's path to its identity; a unit with kernels also needs every probe answer.
    """
    units = []
    for unit, kernels in pending.units:
        extra = {kernel_ids[path] for path in kernels} | (set(probe_ids) if kernels else set())
        units.append(replace(unit, needs=tuple(sorted({*unit.needs, *extra}))))
    return Coverage(tuple(units), pending.shapes)
