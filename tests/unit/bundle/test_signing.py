from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachekit.bundle import Limits, canonical
from cachekit.bundle.signing import (
    BUNDLE_TYPE,
    CONTRIBUTION_TYPE,
    PublicKey,
    SigningKey,
    generate,
    sign,
    verify,
)
from cachekit.errors import CachekitError, ConfigurationError, CorruptError, LimitError, TrustError

KEY, OTHER = generate(), generate()
TRUSTED = {KEY.keyid: KEY.public}
PAYLOAD = b'{"namespace":"local"}'
ENVELOPE = sign(PAYLOAD, KEY)


@settings(max_examples=30)
@given(st.binary(max_size=200))
def test_round_trip(payload: bytes) -> None:
    """What a trusted key signed comes back, with the key's id."""
    signed = verify(sign(payload, KEY), TRUSTED)
    assert (payload, KEY.keyid) == (signed.payload, signed.keyid)


def test_envelope_is_dsse_for_other_tools() -> None:
    """securesystemslib verifies our envelope, and we verify its."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner, SSlibKey

    public = SSlibKey.from_crypto(load_pem_public_key(KEY.public.pem), keyid=KEY.keyid)
    assert {KEY.keyid} == Envelope.from_dict(json.loads(ENVELOPE)).verify([public], 1).keys()

    theirs = Envelope(PAYLOAD, BUNDLE_TYPE, {})
    private: Any = load_pem_private_key(KEY.pem, None)
    theirs.sign(CryptoSigner(private, public))
    assert verify(json.dumps(theirs.to_dict()).encode(), TRUSTED).payload == PAYLOAD


def test_key_id_can_be_computed_by_hand() -> None:
    """The id is the sha256 of the public key in DER."""
    body = b"".join(KEY.public.pem.splitlines()[1:-1])
    assert KEY.keyid == KEY.public.keyid == hashlib.sha256(base64.b64decode(body)).hexdigest()


def test_unknown_key_is_refused_by_name() -> None:
    """The message says whose key it is and what to do about it."""
    with pytest.raises(TrustError, match=rf"{OTHER.keyid[:12]}.*add its public key"):
        verify(sign(PAYLOAD, OTHER), TRUSTED)
    with pytest.raises(TrustError, match=r"0 trusted.*folder of keys back"):
        verify(ENVELOPE, {})


def test_other_key_under_a_trusted_id_is_refused() -> None:
    """A key cannot borrow the id of another, in the envelope or in the trust store."""
    forged = json.loads(sign(PAYLOAD, OTHER))
    forged["signatures"][0]["keyid"] = KEY.keyid
    with pytest.raises(TrustError, match="does not match"):
        verify(json.dumps(forged).encode(), TRUSTED)
    with pytest.raises(TrustError):
        verify(json.dumps(forged).encode(), {KEY.keyid: OTHER.public})


def test_changed_payload_is_refused() -> None:
    """A signature is over these bytes only."""
    changed = json.loads(ENVELOPE)
    changed["payload"] = base64.b64encode(PAYLOAD + b" ").decode()
    with pytest.raises(TrustError, match="changed after signing"):
        verify(json.dumps(changed).encode(), TRUSTED)


def test_contribution_does_not_pass_for_a_bundle() -> None:
    """The type is signed with the payload: neither asking for another nor relabelling works."""
    envelope = sign(PAYLOAD, KEY, payload_type=CONTRIBUTION_TYPE)
    assert verify(envelope, TRUSTED, payload_type=CONTRIBUTION_TYPE).payload == PAYLOAD
    with pytest.raises(TrustError, match="contribution"):
        verify(envelope, TRUSTED)
    with pytest.raises(TrustError, match="changed after signing"):
        verify(envelope.replace(CONTRIBUTION_TYPE.encode(), BUNDLE_TYPE.encode()), TRUSTED)


def test_unsigned_document_is_refused() -> None:
    """An envelope without signatures is not signed by anybody."""
    with pytest.raises(TrustError, match="not signed"):
        verify(canonical.dumps({**json.loads(ENVELOPE), "signatures": []}), TRUSTED)


def test_one_trusted_signature_among_several_is_enough() -> None:
    """While keys are rotated, a document carries signatures of the old and the new one."""
    both = json.loads(ENVELOPE)
    both["signatures"].insert(0, json.loads(sign(PAYLOAD, OTHER))["signatures"][0])
    assert KEY.keyid == verify(json.dumps(both).encode(), TRUSTED).keyid
    assert OTHER.keyid == verify(json.dumps(both).encode(), {OTHER.keyid: OTHER.public}).keyid


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": 1},
        {"payload": "???"},
        {"payload": None},
        {"payloadType": 1},
        {"signatures": None},
        {"signatures": {}},
        {"signatures": [1]},
        {"signatures": ["x"]},
        {"signatures": [{}]},
        {"signatures": [{"keyid": 1, "sig": ""}]},
        {"signatures": [{"keyid": "x", "sig": 1}]},
        {"signatures": [{"keyid": "x", "sig": "?"}]},
        {"signatures": [{"keyid": "x", "sig": "A" * 4000}]},
        {"signatures": [{"keyid": "x", "sig": ""}] * 17},
    ],
)
def test_malformed_envelope_is_corrupt(changes: dict[str, Any]) -> None:
    """What is not an envelope is named so, and is not a question of trust."""
    with pytest.raises(CorruptError):
        verify(canonical.dumps({**json.loads(ENVELOPE), **changes}), TRUSTED)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{}", b'"x"', b"1", PAYLOAD])
def test_what_is_no_envelope_is_corrupt(text: bytes) -> None:
    """Other JSON, and what is not JSON, is refused."""
    with pytest.raises(CorruptError):
        verify(text, TRUSTED)


@given(st.data())
def test_any_damage_is_refused(data: st.DataObject) -> None:
    """A changed byte gives our error, or, in a name that is not signed, nothing else than before."""
    damaged = bytearray(ENVELOPE)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        signed = verify(bytes(damaged), TRUSTED)
    except CachekitError:
        return
    assert signed.payload == PAYLOAD


def test_large_envelope_is_limited() -> None:
    """An envelope cannot be larger than the largest document."""
    with pytest.raises(LimitError):
        verify(b" " * 200_000, TRUSTED, limits=Limits(max_document_bytes=1000))


@pytest.mark.parametrize(
    "pem", [b"", b"secret", KEY.public.pem, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_bad_signing_key_is_a_configuration_error_that_does_not_show_it(pem: bytes) -> None:
    """Whoever reads the log sees that the key is bad, not the key."""
    with pytest.raises(ConfigurationError) as caught:
        sign(PAYLOAD, SigningKey(pem))
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(SigningKey(pem))


def test_keys_of_other_algorithms_are_refused() -> None:
    """Only ed25519 keys sign and verify."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = X25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(ConfigurationError, match="ed25519"):
        sign(PAYLOAD, SigningKey(private))
    with pytest.raises(ConfigurationError, match="ed25519"):
        _ = PublicKey(public).keyid
    with pytest.raises(ConfigurationError):
        _ = PublicKey(b"nonsense").keyid


def test_cryptography_is_imported_only_when_a_key_is_used() -> None:
    """The start path does not pay for it before there is something to verify."""
    program = (
        "import sys, cachekit.bundle.signing as s; assert 'cryptography' not in sys.modules; s.generate()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
