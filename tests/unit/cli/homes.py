"""A CACHEKIT_DIR with real bundles in it, made through ``publish``, and a way to run the real application on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from typer.testing import CliRunner

from cachekit.bundle import Artifact, Bundle, Coverage, Shape, ShapeRow, Unit, megacache, partners_of
from cachekit.cli import app
from cachekit.identity.fingerprint import Fingerprint
from cachekit.store import keys
from cachekit.store.local import DirectoryStore
from cachekit.store.publish import Contribution, fetch, publish

FIXTURES = Path(__file__).parents[2] / "fixtures" / "megacache"

SMALL, LARGE = Shape.of(512, 512, 1), Shape.of(1024, 768, 2, frames=17)


def components(**changes: Any) -> dict[str, Any]:
    """Components as a real fingerprint has them; ``changes`` by dotted path, with ``__`` for the dots."""
    made: dict[str, Any] = {
        "toolchain": {
            "torch": {"version": "2.13.0", "git": "0" * 40, "cuda": "12.8", "hip": None},
            "gpu": {"type": "cuda", "ordinal": 0, "name": "NVIDIA H200"},
            "cpu": {"arch": "x86_64", "vector_isa": "avx512", "threads": 8},
        },
        "pipeline": {
            "family": "StableDiffusionXL",
            "denoisers": {
                "unet": {"kind": "unet", "class": "diffusers.UNet2DConditionModel", "config": {"in": 4}}
            },
        },
        "plan": {"device": "cuda:0", "scope": "module", "dynamic": False},
    }
    for path, value in changes.items():
        *parents, name = path.split("__")
        inner = made
        for parent in parents:
            inner = inner[parent]
        inner[name] = value
    return made


def artifacts(name: str = "torch-2.13-double") -> tuple[Artifact, ...]:
    """Artifacts that torch really made."""
    data = (
        zstandard.ZstdDecompressor().decompressobj().decompress((FIXTURES / f"{name}.bin.zst").read_bytes())
    )
    return tuple(megacache.decode(data))


@dataclass(frozen=True)
class Answer:
    """What one run of the application gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


class Home:
    """A CACHEKIT_DIR."""

    def __init__(self, folder: Path) -> None:
        self.dir = folder
        self.store = DirectoryStore(folder / "store")
        self.manifest = folder / "manifest.sqlite3"

    def run(self, *arguments: str, stdin: bytes | None = None) -> Answer:
        """Run a verb with this folder as its ``--dir``."""
        return run(*arguments, "--dir", str(self.dir), stdin=stdin)

    def publish(
        self,
        made: tuple[Artifact, ...] | None = None,
        *,
        coverage: Coverage | None = None,
        **changes: Any,
    ) -> Bundle:
        """Save artifacts under a fingerprint, as a session does; by default all of a real Mega-cache, two units."""
        made = artifacts() if made is None else made
        root = self.dir / "keys"
        contribution = Contribution(
            fingerprint=Fingerprint.of(components(**changes)),
            artifacts=made,
            coverage=covering(made) if coverage is None else coverage,
            producer={"torch": "2.13.0", "cachekit": "0.1.0"},
            created=1_700_000_000_000,
            cold={"first_call_s": 12.5},
        )
        key = keys.load_or_create(root)
        return publish(self.store, contribution, key, keys.trusted(root), now=lambda: 1_700_000_000.0).bundle

    def fetch(self, fid: str) -> Bundle:
        """The committed bundle."""
        bundle = fetch(self.store, fid, keys.trusted(self.dir / "keys"))
        assert bundle is not None
        return bundle

    def blob(self, digest: str) -> Path:
        """The file of a blob."""
        return self.dir / "store" / "local" / "blobs" / "sha256" / digest[:2] / digest

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Every file with its time and bytes, to see that nothing was changed."""
        return {
            str(path.relative_to(self.dir)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(self.dir.rglob("*"))
            if path.is_file()
        }


def covering(made: tuple[Artifact, ...]) -> Coverage:
    """One static unit per pair of aot_autograd and inductor artifacts, each with a shape of its own."""
    units = [
        Unit(False, f'{{"args":[{index}]}}', needs=_needs(outer, made), seconds=20.0 + index)
        for index, outer in enumerate(one for one in made if one.kind == "aot_autograd")
    ]
    rows = [ShapeRow(shape, (unit.id,)) for shape, unit in zip((SMALL, LARGE), units, strict=False)]
    return Coverage(tuple(units), tuple(rows))


def _needs(outer: Artifact, made: tuple[Artifact, ...]) -> tuple[str, ...]:
    partners = partners_of(outer.data)
    return tuple(sorted(one.identity.id for one in made if one is outer or one.key in partners))


def run(*arguments: str, stdin: bytes | None = None) -> Answer:
    """Run the application in this process."""
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)
