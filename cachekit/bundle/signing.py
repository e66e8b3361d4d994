"""Signatures over documents: DSSE envelopes with ed25519 keys. Pure over bytes; files and trust stores are elsewhere.

    key = generate()
    envelope = sign(payload, key)
    verify(envelope, {key.keyid: key.public}).payload == payload

The payload type is signed with the payload, so that a contribution can never pass for a bundle. A key's id is the
sha256 of its public key in DER, which ``openssl pkey -pubin -outform DER | sha256sum`` prints as well.

`cryptography` is imported when a key is used, not before. The envelopes are ordinary DSSE 1.0 and can be checked with
other tools.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachekit.bundle import canonical
from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.errors import ConfigurationError, CorruptError, LimitError, TrustError, UnsupportedError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

BUNDLE_TYPE = "application/vnd.cachekit.bundle+json"
CONTRIBUTION_TYPE = "application/vnd.cachekit.contribution+json"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key to verify with: PEM, SubjectPublicKeyInfo.

    Raises:
        ConfigurationError: when used, if `pem` is not an ed25519 public key.
    """

    pem: bytes

    @property
    def keyid(self) -> str:
        """sha256 (64 hex digits) of the key in DER."""
        return _keyid(self.pem)

    def __repr__(self) -> str:
        return f"<PublicKey {self.keyid[:16]}>"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key: PEM, PKCS 8, not encrypted. Whoever stores it keeps it to its user.

    Raises:
        ConfigurationError: when used, if `pem` is not an ed25519 private key.
    """

    pem: bytes = field(repr=False)

    @property
    def public(self) -> PublicKey:
        """The public half."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = _private(self.pem).public_key()
        return PublicKey(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    @property
    def keyid(self) -> str:
        """The id of the public half."""
        return self.public.keyid


@dataclass(frozen=True, slots=True)
class Signed:
    """A payload whose signature was checked, and the key that made it."""

    payload: bytes = field(repr=False)
    keyid: str


def generate() -> SigningKey:
    """Make a new key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = Ed25519PrivateKey.generate()
    return SigningKey(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def sign(payload: bytes, key: SigningKey, *, payload_type: str = BUNDLE_TYPE) -> bytes:
    """Return the envelope, canonical JSON, of `payload` signed with `key`.

    Raises:
        ConfigurationError: the key cannot be used.
    """
    signature = _private(key.pem).sign(_encoded(payload_type, payload))
    return canonical.dumps(
        {
            "payload": base64.b64encode(payload).decode("ascii"),
            "payloadType": payload_type,
            "signatures": [{"keyid": key.keyid, "sig": base64.b64encode(signature).decode("ascii")}],
        }
    )


def verify(
    envelope: bytes,
    trusted: Mapping[str, PublicKey],
    *,
    payload_type: str = BUNDLE_TYPE,
    limits: Limits = DEFAULT,
) -> Signed:
    """Return what `envelope` carries if a key in `trusted` (by key id) signed exactly that.

    Raises:
        CorruptError: it is not an envelope.
        LimitError: it is larger than a document may be.
        TrustError: no trusted key signed it, or the signature is not over these bytes, or it is of another type.
    """
    # base64 makes four bytes of three.
    if len(envelope) > limits.max_document_bytes // 3 * 4 + 64 * 1024:
        raise LimitError(f"envelope of {len(envelope)} bytes; at most {limits.max_document_bytes} are signed")
    payload, found_type, signatures = _open(envelope, limits)
    if found_type != payload_type:
        raise TrustError(f"signed as {found_type[:100]!r}, wanted {payload_type!r}")
    signed = _encoded(found_type, payload)
    for keyid, signature in signatures:
        key = trusted.get(keyid)
        if key is not None and key.keyid == keyid and _is_valid(key, signature, signed):
            return Signed(payload, keyid)
    raise TrustError(_refusal([keyid for keyid, _ in signatures], trusted))


_SHOWN = 12
"""Digits of a key id that people are shown."""


def _refusal(keyids: list[str], trusted: Mapping[str, PublicKey]) -> str:
    broken = [keyid for keyid in keyids if keyid in trusted]
    if broken:
        key = broken[0][:_SHOWN]
        return f"the signature by trusted key {key} does not match: the document was changed after signing"
    if not keyids:
        return "the document is not signed"
    # Somebody else wrote these: what is no key id is shown escaped.
    names = ", ".join(
        keyid[:_SHOWN] if keyid.isalnum() and keyid.isascii() else ascii(keyid[:64]) for keyid in keyids
    )
    told = (
        f"signed by key {names}, which is not among the {len(trusted)} trusted ones: "
        "add its public key to the trusted keys of this store if you know whose it is"
    )
    return told if trusted else f"{told}, or put the folder of keys back if it was lost or is not mounted"


def _encoded(payload_type: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding: what is really signed."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _open(envelope: bytes, limits: Limits) -> tuple[bytes, str, list[tuple[str, bytes]]]:
    """Take an envelope apart without believing any of it."""
    fields = canonical.loads(envelope, limits)
    try:
        payload, payload_type, signatures = fields["payload"], fields["payloadType"], fields["signatures"]
        if not isinstance(payload_type, str) or not isinstance(signatures, list):
            raise CorruptError("the envelope has no type or no signatures")
        if len(signatures) > limits.max_signatures:
            raise LimitError(f"{len(signatures)} signatures; at most {limits.max_signatures} are read")
        pairs = [
            (_keyid_text(one["keyid"]), _decoded(one["sig"], limits.max_signature_bytes))
            for one in signatures
        ]
        return _decoded(payload, None), payload_type, pairs
    except (KeyError, TypeError, IndexError) as exc:
        raise CorruptError(f"not a DSSE envelope: {type(exc).__name__} {exc}") from exc


def _keyid_text(value: Any) -> str:
    if not isinstance(value, str):
        raise CorruptError("a key id is not text")
    return value


def _decoded(value: Any, limit: int | None) -> bytes:
    if not isinstance(value, str):
        raise CorruptError("payload and signatures are base64 text")
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError as exc:
        raise CorruptError("payload or signature is not base64") from exc
    if limit is not None and len(data) > limit:
        raise LimitError(f"a signature of {len(data)} bytes")
    return data


def _is_valid(key: PublicKey, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        _public(key.pem).verify(signature, signed)
    except InvalidSignature:
        return False
    return True


@functools.lru_cache(maxsize=64)
def _keyid(pem: bytes) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = _public(pem).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


@functools.lru_cache(maxsize=64)
def _public(pem: bytes) -> Ed25519PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise ConfigurationError(f"not a public key in PEM: {exc}") from exc
    if not isinstance(key, Ed25519PublicKey):
        raise UnsupportedError(f"public keys must be ed25519, not {type(key).__name__}")
    return key


def _private(pem: bytes) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        # The text of the error must not quote the key.
        raise ConfigurationError(f"not an unencrypted private key in PEM ({type(exc).__name__})") from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise UnsupportedError(
            f"this release signs with ed25519, not {type(key).__name__}: upgrade cachekit if a newer one made the key"
        )
    return key
