"""What a collection would leave, worked out on values: the steps of `cachekit.store.removal` without a file touched.

`cachekit gc --dry-run` tells by it what the real run would come to. New documents are made and measured, and not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cachekit.bundle import eviction, signing
from cachekit.bundle.bundle import Bundle
from cachekit.bundle.document import to_payload
from cachekit.bundle.eviction import Member
from cachekit.store.base import Head, digest_of
from cachekit.store.holdings import File, Holdings, Namespace, Profile, named

if TYPE_CHECKING:
    from cachekit.store.seen import Seen


class Rehearsal:
    """Takes out of holdings what a `Remover` would take out of the store."""

    def __init__(self, seen: Callable[[str], Seen] | None) -> None:
        self._seen = seen
        self._key = signing.generate()  # any key signs with as many bytes
        self.removed: list[tuple[str, str]] = []

    def sweep(self, holdings: Holdings, waste: Iterable[File]) -> Holdings:
        """Without files that nobody needs."""
        gone = {file.parts for file in waste}

        def left(files: tuple[File, ...]) -> tuple[File, ...]:
            return tuple(file for file in files if file.parts not in gone)

        def swept(profile: Profile) -> Profile:
            files = left(profile.files)
            names = {file.name for file in files}
            documents = {head: its for head, its in profile.documents.items() if head.filename in names}
            return replace(profile, files=files, documents=documents)

        return _of(
            holdings,
            [
                replace(one, files=left(one.files), profiles=tuple(map(swept, one.profiles)))
                for one in holdings.namespaces
            ],
        )

    def evict(self, holdings: Holdings, members: Mapping[tuple[str, str], list[Member]]) -> Holdings:
        """Without groups: a bundle that holds less in a new generation, or the whole profile where nothing is left."""

        def those(namespace: Namespace) -> Iterable[Profile]:
            for profile in namespace.profiles:
                its = members.get((namespace.store.namespace, profile.fid))
                found = profile if not its or profile.bundle is None else self._evicted(profile, its)
                if found is not None:
                    yield found

        return _of(holdings, [replace(one, profiles=tuple(those(one))) for one in holdings.namespaces])

    def _evicted(self, profile: Profile, members: Iterable[Member]) -> Profile | None:
        assert profile.bundle is not None
        left = eviction.without(profile.bundle, members)
        empty = not (left.entries or left.spare or left.coverage.units or left.tombstones)
        if empty and not (
            self._seen is not None and self._seen(profile.store.namespace).withdrawn(profile.fid)
        ):
            self.removed.append((profile.store.namespace, profile.fid))
            return None
        return self._committed(profile, left)

    def _committed(self, profile: Profile, left: Bundle) -> Profile:
        assert profile.head is not None
        bundle = replace(left, generation=profile.head.generation + 1, parent=profile.head.digest)
        document = signing.sign(to_payload(bundle), self._key)
        head = Head(bundle.generation, digest_of(document))
        folder = ("profiles", profile.fid)
        written = max((file.written for file in profile.files), default=0.0)
        new = (
            File((profile.store.namespace, *folder, "head.json"), len(head.to_bytes()), written),
            File((profile.store.namespace, *folder, "generations", head.filename), len(document), written),
        )
        kept = tuple(file for file in profile.files if not file.is_document and file.name != "head.json")
        documents = {head: named(document)}
        return replace(profile, head=head, bundle=bundle, documents=documents, files=(*kept, *new))


def _of(holdings: Holdings, namespaces: list[Namespace]) -> Holdings:
    gone = _bytes(holdings.namespaces) - _bytes(namespaces)  # there may be more that is in no namespace
    return replace(holdings, total=holdings.total - gone, namespaces=tuple(namespaces))


def _bytes(namespaces: Iterable[Namespace]) -> int:
    return sum(
        file.size
        for one in namespaces
        for files in (one.files, *(profile.files for profile in one.profiles))
        for file in files
    )
