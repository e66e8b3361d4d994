"""Source text of user code: told from the file, parsed once, and from bytecode where there is no file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from diffusers.models.transformers import transformer_flux

from cachekit.identity import source

Loader = Callable[..., ModuleType]
ENGINE = '''
import functools

def wrap(kind):
    return kind

@wrap
class Block:
    """A block."""

    table = {"a", "b"}

    class Inner:
        x = 1

    def forward(self, x):
        return x + 1

if True:
    class Late:
        y = 2

def make():
    class Local:
        z = 3
    return Local
'''


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Load a module of an engine from source text."""

    def load(text: str, name: str = "engine_model") -> ModuleType:
        folder = tmp_path / str(time.monotonic_ns())
        folder.mkdir()
        path = folder / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_classes_wherever_they_stand(load: Loader) -> None:
    """Decorated, nested, conditional, and local classes are found, decorators included."""
    engine = load(ENGINE)

    assert source.class_source(engine.Block).startswith("@wrap\nclass Block:")
    assert source.class_source(engine.Block.Inner) == "class Inner:\n    x = 1"
    assert source.class_source(engine.Late) == "class Late:\n    y = 2"
    assert source.class_source(engine.make()) == "class Local:\n    z = 3"


def test_layout_does_not_count_and_code_does(load: Loader) -> None:
    """Blank lines and code elsewhere in the file change nothing; a changed line does."""
    before = source.class_source(load(ENGINE).Block)
    moved = source.class_source(
        load("import os\n\n\n" + ENGINE.replace("    def forward", "\n\n    def forward")).Block
    )
    changed = source.class_source(load(ENGINE.replace("x + 1", "x + 2")).Block)

    assert before == moved
    assert before != changed


def test_class_without_a_file() -> None:
    """Code from ``exec`` is told by what it does, in an order that does not depend on the process."""

    def make(body: str) -> type:
        scope: dict[str, type] = {}
        exec(f"class P:\n    def b(self):\n        return {body}\n    def a(self):\n        pass\n", scope)
        return scope["P"]

    texts = [source.class_source(make(body)) for body in ("1", "1", "2", "x in {'a', 'b', 'c'}")]

    assert texts[0] == texts[1]
    assert len(set(texts)) == 3
    assert "['set', \"'a'\", \"'b'\", \"'c'\"]" in texts[3]


def test_a_file_that_cannot_be_parsed(load: Loader) -> None:
    """A module whose file was broken after it was loaded is told by its bytecode."""
    engine = load(ENGINE)
    assert engine.__file__ is not None
    Path(engine.__file__).write_text("class Block(:")

    assert "forward" in source.class_source(engine.Block)


def test_it_agrees_with_inspect() -> None:
    """On a real file of many classes: the same text that ``inspect`` finds, which parses the file for each."""
    classes = [kind for _, kind in inspect.getmembers(transformer_flux, inspect.isclass)]
    mine = [kind for kind in classes if kind.__module__ == transformer_flux.__name__]

    assert len(mine) > 5
    for kind in mine:
        assert source.class_source(kind) == source._normal(inspect.getsource(kind).splitlines())
