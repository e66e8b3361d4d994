"""`DirectoryStore`: the store layout in a folder of this host, for one user.

::

    <root>/<namespace>/blobs/sha256/ab/<digest>
    <root>/<namespace>/contributions/<digest>
    <root>/<namespace>/profiles/<fingerprint id>/profile.json, head.json, generations/<n>-<digest>.json
    <root>/<namespace>/quarantine/              damaged files, for people to look at; nothing reads them

Heads are moved under flock, which network file systems do not honour: keep the root on a local disk. The first access
makes sure that no other user can write the namespace's folder; everything read is checked by digest on top.

Sits on `cachekit.store.files`; knows nothing of bundles and signatures.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from cachekit.errors import (
    ConfigurationError,
    ConflictError,
    CorruptError,
    NewerSchemaError,
    NotFoundError,
    StoreError,
)
from cachekit.store import files, guards, quarantine
from cachekit.store.base import (
    MAX_DOCUMENT_BYTES,
    MAX_HEAD_BYTES,
    MAX_PROFILE_BYTES,
    Head,
    check_bytes,
    check_digest,
    check_fingerprint_id,
    check_namespace,
    digest_of,
    is_digest,
    is_fingerprint_id,
)


class DirectoryStore:
    """A store in a folder. Making one touches nothing; the folder appears with the first write.

    With ``keep_all_damaged`` nothing is let go from quarantine, for who puts much into it at once.

    Raises `ConfigurationError` for a bad namespace. The methods are those of `cachekit.store.base.Store`.
    """

    def __init__(
        self, root: str | os.PathLike[str], namespace: str = "local", *, keep_all_damaged: bool = False
    ) -> None:
        self._bounded = not keep_all_damaged
        self._namespace = check_namespace(namespace)
        self._root = Path(root).absolute()
        self._folder = self._root / self._namespace
        self._private = False

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self._root)!r}, namespace={self._namespace!r})"

    @property
    def root(self) -> Path:
        """The absolute folder that holds the namespaces."""
        return self._root

    @property
    def namespace(self) -> str:
        """The namespace this store reads and writes."""
        return self._namespace

    @property
    def folder(self) -> Path:
        """The folder of the namespace; it need not be there. Raises `StoreError` if others can write it."""
        return self._namespace_folder

    @property
    def quarantine(self) -> Path:
        """Where damaged files go, see `cachekit.store.quarantine`. Raises `StoreError` as `folder` does."""
        return files.inside(self._namespace_folder, "quarantine")

    # -- guards --------------------------------------------------------------------------------------------------------

    def publishing(self) -> AbstractContextManager[None]:
        """Nothing of the namespace is collected meanwhile. Entering raises `StoreError`."""
        return guards.publishing(self._namespace_folder)

    @contextlib.contextmanager
    def in_turn(self, fid: str) -> Iterator[None]:
        """Other writers of the profile wait meanwhile, for a bounded time. Never raises `StoreError` of its own."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(
                StoreError
            ):  # the head decides: whoever cannot have a turn goes on without
                stack.enter_context(files.locked(self._profile(fid) / ".turn"))
            yield

    def use(self, fid: str) -> guards.Hold | None:
        """Keep a profile from being collected, from before its head is read until the hold is let go.

        None if there is no such profile yet. Raises `StoreError`.
        """
        return guards.share(self._profile(fid))

    # -- heads ---------------------------------------------------------------------------------------------------------

    def read_head(self, fid: str) -> Head | None:
        """The committed head, or None. Raises `CorruptError`, `NewerSchemaError`, `StoreError`."""
        try:
            return Head.from_bytes(files.read(self._head(fid), max_bytes=MAX_HEAD_BYTES))
        except NotFoundError:
            return None
        except (CorruptError, NewerSchemaError) as exc:
            raise type(exc)(f"{self._head(fid)}: {exc}") from exc

    def move_head(self, fid: str, expected: Head | None, new: Head) -> None:
        """Commit ``new`` if the head is still ``expected``.

        Raises `ConflictError`, `NotFoundError` if its document was never written, `ConfigurationError` if it would go
        back, `CorruptError` if the present head cannot be parsed, `StoreError`.
        """
        if expected is not None and new.generation <= expected.generation:
            raise ConfigurationError(f"a head moves up, not from {expected.generation} to {new.generation}")
        path = self._head(fid)
        if not files.is_file(self._generation(fid, new)):
            raise NotFoundError(f"{self._generation(fid, new)} must be written before the head can name it")
        with files.locked(path.parent / ".lock"):
            found = self.read_head(fid)
            if found != expected:
                raise ConflictError(f"{path} is at {found}, no longer at {expected}")
            files.write(path, new.to_bytes())

    def discard_head(self, fid: str) -> None:
        """Move a head that cannot be parsed into quarantine; a readable one stays. Raises `StoreError`."""
        path = self._head(fid)
        with files.locked(path.parent / ".lock"):
            try:
                self.read_head(fid)
            except CorruptError as exc:
                quarantine.take(path, self.quarantine, str(exc), bounded=self._bounded)

    # -- generation documents ------------------------------------------------------------------------------------------

    def generations(self, fid: str) -> list[Head]:
        """Every document present, committed or not, in ascending order. Raises `StoreError`."""
        found = (Head.from_filename(name) for name in files.names(self._profile(fid) / "generations"))
        return sorted((head for head in found if head), key=lambda head: (head.generation, head.digest))

    def read_generation(self, fid: str, head: Head, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        """The document, its digest checked. Raises `NotFoundError`, `CorruptError`, `LimitError`, `StoreError`."""
        path = self._generation(fid, head)
        return check_bytes(files.read(path, max_bytes=max_bytes), head.digest, str(path))

    def write_generation(self, fid: str, generation: int, data: bytes) -> str:
        """Keep a document that no head names yet; returns its digest. Raises `StoreError`."""
        head = Head(generation, digest_of(data))
        self._put_if_absent(self._generation(fid, head), data, head.digest)
        return head.digest

    def quarantine_generation(self, fid: str, head: Head, *, why: str = "damaged") -> None:
        """Move a damaged document into quarantine; absent is fine. Raises `StoreError`."""
        quarantine.take(self._generation(fid, head), self.quarantine, why, bounded=self._bounded)

    # -- blobs ---------------------------------------------------------------------------------------------------------

    def has_blob(self, digest: str) -> bool:
        """Whether the blob is present; its content is not read. Raises `StoreError`."""
        return files.is_file(self._blob(digest))

    def read_blob(self, digest: str, *, max_bytes: int | None = None) -> bytes:
        """The blob, its digest checked. Raises `NotFoundError`, `CorruptError`, `LimitError`, `StoreError`."""
        path = self._blob(digest)
        return check_bytes(files.read(path, max_bytes=max_bytes), digest, str(path))

    def write_blob(self, data: bytes) -> str:
        """Keep the bytes if they are not there yet; a damaged copy goes to quarantine. Raises `StoreError`."""
        digest = digest_of(data)
        self._put_if_absent(self._blob(digest), data, digest)
        return digest

    def quarantine_blob(self, digest: str, *, why: str = "damaged") -> None:
        """Move a damaged blob into quarantine; absent is fine. Raises `StoreError`."""
        quarantine.take(self._blob(digest), self.quarantine, why, bounded=self._bounded)

    # -- contributions and profiles ------------------------------------------------------------------------------------

    def contributions(self) -> list[str]:
        """Digests of all contributions, sorted. Raises `StoreError`."""
        return [name for name in files.names(self._namespace_folder / "contributions") if is_digest(name)]

    def read_contribution(self, digest: str) -> bytes:
        """A contribution, its digest checked. Raises `NotFoundError`, `CorruptError`, `LimitError`, `StoreError`."""
        path = self._contribution(digest)
        return check_bytes(files.read(path, max_bytes=MAX_DOCUMENT_BYTES), digest, str(path))

    def write_contribution(self, data: bytes) -> str:
        """Keep a statement if it is not there yet; returns its digest. Raises `StoreError`."""
        digest = digest_of(data)
        self._put_if_absent(self._contribution(digest), data, digest)
        return digest

    def profiles(self) -> list[str]:
        """Fingerprint ids that have a folder, sorted. Raises `StoreError`."""
        return [
            name for name in files.folders(self._namespace_folder / "profiles") if is_fingerprint_id(name)
        ]

    def read_profile(self, fid: str) -> bytes | None:
        """The components as written, or None. Raises `LimitError`, `StoreError`."""
        try:
            return files.read(self._profile(fid) / "profile.json", max_bytes=MAX_PROFILE_BYTES)
        except NotFoundError:
            return None

    def write_profile(self, fid: str, data: bytes) -> None:
        """Keep the components; the same bytes again write nothing. Raises `StoreError`."""
        self._put_if_absent(self._profile(fid) / "profile.json", data, digest_of(data))

    # -- paths ---------------------------------------------------------------------------------------------------------

    @property
    def _namespace_folder(self) -> Path:
        if not self._private:
            self._private = files.check_private(self._folder)
        return self._folder

    def _profile(self, fid: str) -> Path:
        return files.inside(self._namespace_folder, "profiles", check_fingerprint_id(fid))

    def _head(self, fid: str) -> Path:
        return self._profile(fid) / "head.json"

    def _generation(self, fid: str, head: Head) -> Path:
        return files.inside(self._profile(fid), "generations") / head.filename

    def _blob(self, digest: str) -> Path:
        return files.inside(self._namespace_folder, "blobs", "sha256", check_digest(digest)[:2]) / digest

    def _contribution(self, digest: str) -> Path:
        return files.inside(self._namespace_folder, "contributions") / check_digest(digest)

    def _put_if_absent(self, path: Path, data: bytes, digest: str) -> None:
        # An equal name is not enough: a copy damaged by the disk would be kept for ever.
        try:
            present = digest_of(files.read(path, max_bytes=len(data))) == digest
        except NotFoundError:
            present = False
        except CorruptError:  # longer than it may be
            present = False
        if present:
            return
        if files.is_file(path):
            quarantine.take(path, self.quarantine, "replaced by what it should be", bounded=self._bounded)
        files.write(path, data)
