"""The codec against the installed torch itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cachekit.bundle import Artifact, megacache
from cachekit.bundle.scan import check
from tests.unit.bundle.strategies import torch_data, torch_key

Found = set[tuple[str, str, bytes]]


def torch_reads(data: bytes) -> Found:
    """Return what torch's own reader makes of a bundle; nothing is loaded or unpickled."""
    import torch._dynamo  # noqa: F401 - without it torch does not know its own types (pytorch#154463)
    from torch.compiler._cache import CacheArtifactManager

    found = CacheArtifactManager.deserialize(data)
    assert found is not None
    return {(one.type(), one.key, one.content) for items in found.values() for one in items}


def as_set(artifacts: list[Artifact]) -> Found:
    """Return artifacts as torch would list them."""
    return {(one.kind, one.key, one.data) for one in artifacts}


def test_torch_reads_what_encode_writes() -> None:
    """torch's reader finds the whole set, several guards of one key included."""
    artifacts = [
        Artifact(kind, torch_key(kind, number), torch_data(kind, guards, b"x"), guards=guards)
        for kind in ("inductor", "aot_autograd", "autotune")
        for number in range(3)
        for guards in (("", "2 <= L['t0']") if kind != "autotune" else ("",))
    ]
    assert as_set(artifacts) == torch_reads(megacache.encode(artifacts))


@pytest.mark.slow
def test_decode_reads_what_torch_wrote(compiled: Callable[[str], bytes]) -> None:
    """A bundle of one save is the same set for torch and for us, before and after we wrote it again."""
    data = compiled("single")
    artifacts = megacache.decode(data)
    assert {"inductor", "aot_autograd"} == {one.kind for one in artifacts}
    assert torch_reads(data) == as_set(artifacts) == torch_reads(megacache.encode(artifacts))


@pytest.mark.slow
def test_two_saves_lose_nothing(compiled: Callable[[str], bytes]) -> None:
    """torch drops the first save's artifacts when it reads the second bundle; decode keeps them, encode repairs it.

    If the first assertion fails, torch has fixed its reader: say so in the documentation.
    """
    data = compiled("double")
    first = as_set(megacache.decode(compiled("single")))
    assert not first & torch_reads(data), "torch reads all blocks now"
    artifacts = megacache.decode(data)
    assert first < as_set(artifacts) == torch_reads(megacache.encode(artifacts))


@pytest.mark.slow
def test_scan_accepts_what_torch_made(compiled: Callable[[str], bytes]) -> None:
    """Constant tensors and training graphs of the installed torch pass the scan."""
    artifacts = megacache.decode(compiled("double"))
    for artifact in artifacts:
        check(artifact.kind, artifact.data)


def test_torch_reads_repaired_recordings(recorded: dict[str, tuple[bytes, dict[str, object]]]) -> None:
    """Bundles of every torch minor are read in full by this one once they were written by encode."""
    for data, _ in recorded.values():
        artifacts = megacache.decode(data)
        assert as_set(artifacts) == torch_reads(megacache.encode(artifacts))
