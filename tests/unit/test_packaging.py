"""What the distributions hold: the library only itself, with its migrations; the server only the server.

Built with the back end that pip uses, straight from the checkout, and offline.
"""

from __future__ import annotations

import email
import email.message
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from cachekit._version import __version__

ROOT = Path(__file__).parents[2]


def _build(source: Path, out: Path, target: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def _tops(names: list[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's wheel, built from the checkout."""
    return _build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def server_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's wheel, built from the checkout."""
    return _build(ROOT / "server", tmp_path_factory.mktemp("server"), "wheel")


def test_library_brings_only_itself(wheel: Path) -> None:
    """An engine gets no top-level server, migrations, tests or benchmarks; ComfyUI has a server.py of its own."""
    assert _tops(_names(wheel)) == {"cachekit", f"torch_cachekit-{__version__}.dist-info"}


def test_every_module_and_the_type_marker_travel(wheel: Path) -> None:
    """The wheel holds each file of the package, ``py.typed`` included, and no cache of the builder's Python."""
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cachekit").rglob("*.py")}

    assert here | {"cachekit/py.typed"} <= set(_names(wheel))
    assert not [name for name in _names(wheel) if "__pycache__" in name]


def test_migrations_of_the_manifest_travel_inside_the_package(wheel: Path) -> None:
    """Alembic finds the manifest's migrations below the package, all of them."""
    migrations = ROOT / "migrations" / "manifest"
    here = {
        path.relative_to(migrations)
        for path in migrations.rglob("*")
        if path.suffix in {".py", ".mako", ".ini"}
    }

    assert here
    assert {f"cachekit/manifest/migrations/{path.as_posix()}" for path in here} <= set(_names(wheel))


def test_manifest_opens_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    """Without the checkout at hand the local index is still created and migrated."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = f"""
import sys
sys.path.insert(0, {str(site)!r})
import cachekit
assert cachekit.__file__.startswith({str(site)!r}), cachekit.__file__
manifest = cachekit.Manifest(__import__("pathlib").Path({str(tmp_path)!r}, "manifest.sqlite3"))
print(manifest.fingerprints())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr


def test_torch_is_never_forced_on_an_engine(wheel: Path) -> None:
    """Installing the library changes no torch: torch and diffusers come only with an extra."""
    needs = _metadata(wheel).get_all("Requires-Dist") or []
    always = " ".join(need.lower() for need in needs if "extra ==" not in need)

    assert not any(name in always for name in ("torch", "diffusers", "boto3", "numpy"))
    assert set(_metadata(wheel).get_all("Provides-Extra") or []) == {"dev", "diffusers", "s3", "torch"}


def test_metadata_says_what_is_supported(wheel: Path) -> None:
    """Name, version, Python range, licence and the console script are those that the README promises."""
    metadata = _metadata(wheel)
    with zipfile.ZipFile(wheel) as archive:
        scripts = archive.read(f"torch_cachekit-{__version__}.dist-info/entry_points.txt").decode()

    assert (metadata["Name"], metadata["Version"]) == ("torch-cachekit", __version__)
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.14"}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "cachekit = cachekit.cli:main" in scripts


def test_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """What is built from the source distribution holds the same files as what is built from the checkout."""
    source = _build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    rebuilt = _build(tmp_path / f"torch_cachekit-{__version__}", tmp_path / "again", "wheel")

    assert sorted(_names(rebuilt)) == sorted(_names(wheel))


def test_server_brings_only_the_server(server_wheel: Path) -> None:
    """The server's distribution holds its package and leaves the library to the library's."""
    names = _names(server_wheel)

    assert _tops(names) == {"server", f"torch_cachekit_server-{__version__}.dist-info"}
    assert {"server/__init__.py", "server/py.typed"} <= set(names)
    assert "server/pyproject.toml" not in names


def test_server_and_library_have_one_version(server_wheel: Path) -> None:
    """A server asks for the library that it was released with."""
    metadata = _metadata(server_wheel)

    assert metadata["Version"] == __version__
    assert f"torch-cachekit=={__version__}" in (metadata.get_all("Requires-Dist") or [])
