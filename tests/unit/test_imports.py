"""The rules of docs/adr/0001-house-and-import-rules.md, held by reading every import, lazy ones included.

A layer may import itself and what stands before it in ``ORDER``. What a layer may import from outside the standard
library is listed in ``FOREIGN``. Three tests start a fresh interpreter, because an import has consequences that no
reading of one file shows.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ORDER = (
    "errors",
    "_version",
    "logs",
    "settings",
    "bundle",
    "identity",
    "store",
    "manifest",
    "runtime",
    "speed",
    "hooks",
    "demo",
    "cli",
    "__main__",
)

# The public face, `import cachekit`, resolves lazily to every layer: only what stands above them all may use it.
MAY_USE_THE_FACE = {"demo", "cli"}

_MODELS = {
    "torch",
    "triton",
    "diffusers",
    "transformers",
    "gguf",
    "peft",
    "accelerate",
    "safetensors",
    "numpy",
}
FOREIGN: dict[str, set[str]] = {
    "errors": set(),
    "_version": set(),
    "logs": set(),
    "settings": set(),
    "bundle": {"cryptography"},
    "identity": _MODELS,
    "store": {"zstandard", "cryptography", "boto3", "botocore", "httpx2"},
    "manifest": {"sqlalchemy", "alembic"},
    "runtime": _MODELS,
    "speed": _MODELS,
    "hooks": _MODELS,
    "demo": _MODELS | {"rich"},
    "cli": {"typer", "click", "rich"},
    "__main__": set(),
}

_DOES_IO = {"http", "os", "pathlib", "shutil", "socket", "sqlite3", "subprocess", "tempfile", "urllib"}
_OF_THE_SERVER = (
    "cachekit.bundle",
    "cachekit.store",
    "cachekit.errors",
    "cachekit.settings",
    "cachekit._version",
)


@dataclass(frozen=True)
class Import:
    """One imported name, in full; ``deferred`` where it happens inside a function or only for annotations."""

    name: str
    line: int
    deferred: bool

    @property
    def top(self) -> str:
        """The distribution-level name: ``torch`` of ``torch._dynamo.utils``."""
        return self.name.partition(".")[0]

    @property
    def layer(self) -> str:
        """The layer of ours that is imported, ``""`` for the face itself."""
        second = self.name.split(".")[1:2]
        return second[0] if second and second[0] in ORDER else ""


def imports_of(source: str, package: str) -> Iterator[Import]:
    """Every import in ``source``, a module in ``package``, also through ``import_module("...")``."""
    return _walk(ast.parse(source), package.split("."), deferred=False)


def _walk(node: ast.AST, package: list[str], *, deferred: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        later = deferred or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        later = later or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        for name in _names(child, package):
            yield Import(name, child.lineno, later)  # type: ignore[attr-defined]
        yield from _walk(child, package, deferred=later)


def _names(node: ast.AST, package: list[str]) -> list[str]:
    """The full names that ``node`` itself imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        return [f"{module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = ast.unparse(node.func).rpartition(".")[2]
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def modules_of(package: str) -> list[Path]:
    """Every Python file of one of our packages."""
    return sorted((ROOT / package).rglob("*.py"))


def _scan(path: Path) -> Iterator[Import]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    return imports_of(path.read_text(encoding="utf-8"), package)


def _layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "" if parts[1] == "__init__" else parts[1]


def breaches(layer: str, found: Iterator[Import]) -> list[str]:
    """What a module of ``layer`` imports and may not, in words."""
    allowed = ORDER[: ORDER.index(layer) + 1]
    wrong = []
    for imported in found:
        if imported.top == "cachekit":
            if not imported.layer and layer not in MAY_USE_THE_FACE:
                wrong.append(f"line {imported.line}: {layer} uses the public face ({imported.name})")
            elif imported.layer and imported.layer not in allowed:
                wrong.append(f"line {imported.line}: {layer} imports {imported.name}, which stands above it")
        elif imported.top == "server":
            if layer != "cli" or not imported.deferred:
                wrong.append(f"line {imported.line}: {layer} imports the server")
        elif imported.top == "typing_extensions" and imported.deferred:
            continue  # for annotations only; type checkers bring it
        elif imported.top not in sys.stdlib_module_names and imported.top not in FOREIGN[layer]:
            wrong.append(f"line {imported.line}: {layer} may not import {imported.top}")
    return wrong


LIBRARY = [path for path in modules_of("cachekit") if _layer_of(path)]


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_package_has_its_place_in_the_order() -> None:
    """A new package or module at the top of the library is given a layer before it is used."""
    assert {_layer_of(path) for path in LIBRARY} <= set(ORDER)
    assert set(FOREIGN) == set(ORDER)


@pytest.mark.parametrize("path", LIBRARY, ids=_relative)
def test_imports_point_one_way(path: Path) -> None:
    """No module imports a layer above its own, the server, or a library that is not its layer's business."""
    assert breaches(_layer_of(path), _scan(path)) == []


def test_bundle_does_no_io() -> None:
    """Bundles are values: no module of theirs opens a file, a socket or a process."""
    for path in modules_of("cachekit/bundle"):
        assert {found.top for found in _scan(path)} & _DOES_IO == set(), _relative(path)
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert "open" not in {ast.unparse(call.func) for call in calls}, _relative(path)


def test_comparing_fingerprints_is_pure() -> None:
    """A fingerprint can be read and compared where no library is installed at all, as in the server."""
    found = list(_scan(ROOT / "cachekit/identity/fingerprint.py"))

    assert [
        each for each in found if each.top != "cachekit" and each.top not in sys.stdlib_module_names
    ] == []


@pytest.mark.parametrize("module", ["sqlalchemy", "alembic", "boto3", "botocore", "cachekit.manifest"])
def test_slow_libraries_are_never_imported_in_passing(module: str) -> None:
    """What takes half a second to import waits for the background thread: only the manifest itself has it on top."""
    for path in LIBRARY:
        if _layer_of(path) not in ("manifest", "cli", "demo"):
            hasty = [found for found in _scan(path) if not found.deferred and _is_within(found.name, module)]
            assert hasty == [], _relative(path)


@pytest.mark.parametrize("path", modules_of("server"), ids=_relative)
def test_server_uses_only_the_pure_half(path: Path) -> None:
    """The server merges bundles without torch: of the library it has bundles, stores and pure fingerprints."""
    allowed = (*_OF_THE_SERVER, "cachekit.identity.fingerprint")
    for found in _scan(path):
        assert found.top not in _MODELS, f"{_relative(path)}:{found.line} imports {found.name}"
        if found.top == "cachekit":
            assert any(_is_within(found.name, module) for module in allowed), (
                f"{_relative(path)}:{found.line}"
            )


@pytest.mark.parametrize("path", modules_of("migrations"), ids=_relative)
def test_migrations_stand_alone(path: Path) -> None:
    """A migration describes a past schema, so it uses Alembic, SQLAlchemy and, for its engine, the manifest."""
    for found in _scan(path):
        allowed = found.top in ("alembic", "sqlalchemy") or found.name.startswith("cachekit.manifest")
        assert allowed or found.top in sys.stdlib_module_names, f"{_relative(path)}:{found.line} {found.name}"


def _is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _loaded_by(statements: str) -> set[str]:
    """The names in ``sys.modules`` that ``statements`` added in a fresh interpreter."""
    script = f"""
import json, sys
before = set(sys.modules)
{textwrap.dedent(statements)}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def _import_all(*packages: str) -> str:
    paths = [path.relative_to(ROOT).with_suffix("") for package in packages for path in modules_of(package)]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return "\n".join(f"import {name}" for name in names)


def _foreign(loaded: set[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in loaded}
    return tops - set(sys.stdlib_module_names) - {"cachekit", "server"}


def test_import_cachekit_loads_only_the_standard_library() -> None:
    """An engine that imports cachekit pays for no third-party module."""
    loaded = _loaded_by("import cachekit, cachekit.errors, cachekit.settings")

    assert "cachekit" in loaded
    assert _foreign(loaded) == set()


def test_finding_and_verifying_needs_neither_torch_nor_the_manifest() -> None:
    """Everything that finds and verifies a bundle loads without torch, SQLAlchemy, boto3 and the manifest."""
    loaded = _loaded_by(
        _import_all("cachekit/bundle", "cachekit/store") + "\nimport cachekit.identity.fingerprint"
    )

    assert _foreign(loaded) & (_MODELS | {"sqlalchemy", "alembic", "boto3", "botocore"}) == set()
    assert {name for name in loaded if name.startswith(("cachekit.manifest", "cachekit.runtime"))} == set()


def test_server_runs_without_torch() -> None:
    """The whole server, with all of the library that it uses, loads without torch."""
    loaded = _loaded_by(_import_all("server"))

    assert "server" in loaded
    assert _foreign(loaded) & _MODELS == set()


@pytest.mark.parametrize(
    ("layer", "source", "told"),
    [
        ("bundle", "import torch", "may not import torch"),
        (
            "bundle",
            "def f():\n    from torch._inductor import codecache",
            "line 2: bundle may not import torch",
        ),
        ("bundle", "from ..runtime import session", "cachekit.runtime.session, which stands above"),
        ("bundle", "from importlib import import_module\nimport_module('cachekit.store')", "line 2"),
        ("store", "import cachekit.manifest.schema", "which stands above"),
        ("runtime", "from cachekit import attach", "public face"),
        ("hooks", "from cachekit import cli", "which stands above"),
        ("cli", "import server", "imports the server"),
        ("settings", "import platformdirs", "may not import platformdirs"),
    ],
)
def test_a_breach_is_found(layer: str, source: str, told: str) -> None:
    """The reader sees imports wherever they stand and in every spelling."""
    (breach,) = breaches(layer, imports_of(source, f"cachekit.{layer}"))

    assert told in breach


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("runtime", "import torch, os\nfrom cachekit.bundle import Artifact\nfrom . import recorder"),
        ("bundle", "from cachekit import errors\nfrom cachekit.bundle.canonical import dumps"),
        ("cli", "def serve():\n    import server\nimport cachekit"),
    ],
)
def test_what_is_allowed_is_not_reported(layer: str, source: str) -> None:
    """Lower layers, one's own layer and the libraries of a layer pass."""
    assert breaches(layer, imports_of(source, f"cachekit.{layer}")) == []
