"""The keys of a local store: the one this user signs with, and the ones that are trusted.

::

    <root>/signing.pem                  this user's private key, 0600, made on first use
    <root>/trusted/<key id>.pem         public keys; trusting a key is putting it here, revoking it is removing it

The key signs for this store only: nothing makes a fleet trust it. What others could have written or read is refused, on
the open file and before a byte of it is used; links are not followed. A key file is complete or absent, and never
replaced by itself: bundles signed with it would be lost. Revoking one's own key is removing both files.

Signing and verifying is `cachekit.bundle.signing`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from cachekit.errors import CachekitError, ConfigurationError, LimitError, NotFoundError
from cachekit.logs import Log
from cachekit.store import files

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey, SigningKey

log = Log(__name__)

_MAX_PEM_BYTES = 64 * 1024
_PRIVATE = "signing.pem"
_TRUSTED = "trusted"
_RENEW = "move it away for a new key"


def load_or_create(root: str | os.PathLike[str], *, over_bundles: bool = False) -> SigningKey:
    """This user's signing key; on first use a new one is made and trusted. Processes that race get the same one.

    ``over_bundles`` says that the store has bundles already: if no key is trusted, they were lost, and that is told.
    A key that is no longer trusted by its own store, because the public half was lost, is trusted again. Raises
    `ConfigurationError` if the file is not a private key of this user's alone, `StoreError`.
    """
    folder = Path(root).absolute()
    found = load(folder)
    if found is None:
        files.make_folder(folder)
        with files.locked(folder / ".lock"):
            found = load(folder) or _create(folder, over_bundles=over_bundles)
    elif found.keyid not in trusted(folder):
        log.warning("the public half of this user's key was lost and is made again")
        trust(folder, found.public)
    return found


def load(root: str | os.PathLike[str]) -> SigningKey | None:
    """This user's signing key, None if there is none yet. Raises as `load_or_create` does."""
    from cachekit.bundle.signing import SigningKey

    folder = Path(root).absolute()
    if not files.check_private(folder):
        return None
    path = folder / _PRIVATE
    try:
        pem = files.read(path, max_bytes=_MAX_PEM_BYTES, check=lambda found: _check_own(path, found))
    except NotFoundError:
        return None
    except LimitError as exc:
        raise ConfigurationError(f"{exc}: it is no key; {_RENEW}") from exc
    key = SigningKey(pem)
    try:
        key.keyid  # noqa: B018  parses the key
    except ConfigurationError as exc:
        raise type(exc)(f"{path}: {exc}; {_RENEW}") from exc
    return key


def trusted(root: str | os.PathLike[str]) -> dict[str, PublicKey]:
    """The trusted public keys by key id; none if no key was ever made or put there.

    A file that holds no public key, cannot be read or could have been written by others is named in a warning and
    passed over. Raises `StoreError` if the folder itself cannot be relied upon.
    """
    folder = Path(root).absolute()
    if not files.check_private(folder) or not files.check_private(folder / _TRUSTED):
        return {}
    found = {}
    for path in public_files(folder):
        try:
            key = read_public(path)
        except NotFoundError:
            continue  # revoked since it was listed
        except CachekitError as exc:
            log.warning("a key is passed over: %s", exc)  # one bad file must not lock everybody out
            continue
        found[key.keyid] = key
    return found


def public_files(root: str | os.PathLike[str]) -> list[Path]:
    """Where public keys are looked for: every ``.pem`` in the folder of trusted keys. Raises `StoreError`."""
    folder = Path(root).absolute() / _TRUSTED
    return [folder / name for name in files.names(folder) if name.endswith(".pem")]


def read_public(path: Path) -> PublicKey:
    """A trusted key. Raises `ConfigurationError` if it is none, or others could have written it; `StoreError`."""
    from cachekit.bundle.signing import PublicKey

    key = PublicKey(files.read(path, max_bytes=_MAX_PEM_BYTES, check=lambda found: _check_owner(path, found)))
    try:
        key.keyid  # noqa: B018  parses the key
    except ConfigurationError as exc:
        raise type(exc)(f"{path}: {exc}") from exc
    return key


def trust(root: str | os.PathLike[str], key: PublicKey) -> Path:
    """Trust what ``key`` signs in this store from now on; returns the file to remove to revoke that.

    Raises `ConfigurationError` if it is not a public key, `StoreError`.
    """
    path = Path(root).absolute() / _TRUSTED / f"{key.keyid}.pem"
    files.write(path, key.pem)
    return path


def _create(folder: Path, *, over_bundles: bool = False) -> SigningKey:
    from cachekit.bundle import signing

    key = signing.generate()
    if over_bundles and not trusted(folder):
        log.warning(
            "a new key %s was made, because %s holds none, and the bundles that the store has already are not used: "
            "put the lost keys back, or run `cachekit verify --repair` to begin anew",
            key.keyid[:12],
            folder,
        )
    # Trusted first: a key that signs and is not trusted would refuse its own bundles.
    trust(folder, key.public)
    files.write(folder / _PRIVATE, key.pem)
    return key


def _check_own(path: Path, found: os.stat_result) -> None:
    """Raises `ConfigurationError` unless the file is this user's alone."""
    if os.name != "posix":
        return
    if found.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}: use another folder"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        others = "read or written" if mode & 0o022 and mode & 0o044 else "written" if mode & 0o022 else "read"
        raise ConfigurationError(
            f"{path} has mode {mode:04o}, so it could have been {others} by other users: "
            "run chmod 600 on it, or remove it for a new key"
        )


def _check_owner(path: Path, found: os.stat_result) -> None:
    """Raises `ConfigurationError` if others could have written the file: it says whom to trust."""
    if os.name != "posix":
        return
    if found.st_mode & 0o022:
        raise ConfigurationError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, so others could have written it: "
            "make sure whose key it is, then run chmod 600 on it"
        )
    if os.geteuid() != 0 and found.st_uid not in {0, os.geteuid()}:
        raise ConfigurationError(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}: copy it")
