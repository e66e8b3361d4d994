"""Any Python value has a stable JSON form: no addresses, no exceptions, and plain values are told apart."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import logging
import math
import pathlib
import re
import types
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachekit.bundle import canonical
from cachekit.identity.stable import function_name, hide_path, stable, type_name, unwrap_ours

# Machines that build and test are often busy: how long an example takes says nothing here.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}|\bat 0x")


class Plain:
    """An object whose repr tells its address."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Slotted:
    """An object without ``__dict__``."""

    __slots__ = ("_hidden", "never_set", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self._hidden = object()


class Hostile:
    """An object that raises from everything Python may ask of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class Proxy:
    """An object that claims to be of another class."""

    __class__ = dict  # type: ignore[assignment]


class Colour(enum.Enum):
    """An enum."""

    RED = 1


@dataclasses.dataclass
class Data:
    """A dataclass that holds itself."""

    x: int = 1
    me: Any = None


def _cyclic() -> Any:
    found: dict[str, Any] = {}
    found["me"] = [found]
    return found


def _self_holding() -> Data:
    data = Data()
    data.me = data
    return data


def _closure(scale: float) -> Callable[[float], float]:
    return lambda x: x * scale


Pair = namedtuple("Pair", "a b")  # noqa: PYI024

EXOTIC: dict[str, Callable[[], Any]] = {
    "object": object,
    "plain": lambda: Plain(x=1, inner=Plain(y=object())),
    "slotted": lambda: Slotted(1),
    "hostile": Hostile,
    "proxy": Proxy,
    "hostile in a list": lambda: [Hostile(), {"k": Hostile()}],
    "lambda": lambda: lambda x: x,
    "closure": lambda: _closure(2.0),
    "bound method": lambda: Plain(x=1).__init__,
    "builtin method": lambda: [].append,
    "partial": lambda: functools.partial(_closure, object()),
    "generator": lambda: (x for x in range(3)),
    "module": lambda: types,
    "lock": lambda: logging.getLogger("x").handlers,
    "bytes": lambda: b"\x00\xff",
    "tensor": lambda: torch.ones(2, 3),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "nn.Module": lambda: torch.nn.Linear(2, 2),
    "generator of torch": torch.Generator,
    "torch enum": torch._C._get_blas_preferred_backend,
    "cyclic": _cyclic,
    "self-holding": _self_holding,
    "nan": lambda: [math.nan, math.inf, -math.inf],
    "surrogate": lambda: "\ud800",
    "set of types": lambda: {int, str, Plain},
    "mixed keys": lambda: {1: "a", "1": "b", (1, 2): "c", None: "d"},
    "numpy": lambda: [np.float32(1.5), np.int64(3), np.zeros(2)],
    "huge": lambda: 10**400,
    "deep": lambda: functools.reduce(lambda inner, _: [inner], range(500), []),
    "code": lambda: _closure.__code__,
    "type": lambda: Plain,
    "local type": lambda: type("Local", (), {}),
    "ellipsis": lambda: ...,
    "slice": lambda: slice(1, 2),
    "exception": lambda: ValueError("x"),
    "named tuple": lambda: Pair(1, 2),
}


@pytest.mark.parametrize("name", EXOTIC)
def test_exotic_values_have_a_form_without_an_address(name: str) -> None:
    """Two objects of one meaning give one text; nothing raises; no address gets in."""
    texts = {canonical.dumps(stable(EXOTIC[name]())).decode() for _ in range(3)}

    assert len(texts) == 1
    assert not _ADDRESS.search(texts.pop())


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        (1, True),
        (1, "1"),
        (0.1, 0.2),
        (math.nan, math.inf),
        (torch.float16, torch.bfloat16),
        (torch.strided, torch.sparse_coo),
        (torch.device("cuda", 0), torch.device("cuda", 1)),
        (Colour.RED, "RED"),
        ({1, 2}, {1, 3}),
        ({1: "a"}, {"1": "a"}),
        ([1, 2], [2, 1]),
        (Plain(x=1), Plain(x=2)),
        (Slotted(1), Slotted(2)),
        (Plain(x=1), Data(1)),
        (np.float32(1.5), np.float32(2.5)),
        (np.int64(1), np.int64(2)),
        (_closure(2.0), _closure(3.0)),
        (lambda x: x + 1, lambda x: x + 2),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (functools.partial(max, 1), functools.partial(min, 1)),
        (b"a", b"b"),
        (torch.ones(2), torch.ones(3)),
        ("/usr/bin/g++", "/opt/bin/g++"),
        (int, float),
        (math.sin, math.cos),
    ],
)
def test_different_values_are_told_apart(a: Any, b: Any) -> None:
    """What means something else gets another form."""
    assert canonical.dumps(stable(a)) != canonical.dumps(stable(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (OrderedDict(a=1), {"a": 1}),
        ((1, 2), [1, 2]),
        (torch.Size([1, 2]), [1, 2]),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        (frozenset({1}), {1}),
        (np.float64(0.5), 0.5),
        (np.int32(7), 7),
        (torch.ones(2), torch.zeros(2)),
    ],
)
def test_one_meaning_has_one_form(a: Any, b: Any) -> None:
    """Order of dicts and sets, kind of sequence, and the weights in a tensor do not matter."""
    assert canonical.dumps(stable(a)) == canonical.dumps(stable(b))


@relaxed
@given(
    st.recursive(
        st.integers() | st.text() | st.floats(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_plain_json_always_has_a_canonical_form(value: Any) -> None:
    """Whatever a configuration holds can be put into a fingerprint."""
    assert json.loads(canonical.dumps(stable(value))) is not Ellipsis


@pytest.mark.parametrize(
    "path", ["/home/ada/models/x", "~/models/x", "C:\\models\\x", pathlib.Path("/models/x")]
)
def test_absolute_paths_are_hidden(path: Any) -> None:
    """Fingerprints are published: the folders of a machine are not theirs to tell."""
    told = stable(path)

    assert told.startswith("x@")
    assert "ada" not in told
    assert "models" not in told


def test_other_text_is_not_taken_for_a_path() -> None:
    """Only absolute paths are hidden."""
    assert [hide_path(text) for text in ("ATEN,TRITON", "a/b", "", "g++")] == [
        "ATEN,TRITON",
        "a/b",
        "",
        "g++",
    ]


def test_library_classes_are_named_and_user_classes_carry_their_source() -> None:
    """The version tells what a library class does; a user's class is told by what is written in it."""
    assert type_name(torch.nn.Linear) == "torch.nn.modules.linear.Linear"
    assert re.fullmatch(r"Plain#[0-9a-f]{12}", type_name(Plain))


def test_a_class_is_the_same_under_another_module_name() -> None:
    """The same file is ``__main__`` for one engine and ``engine.model`` for another."""

    def make(module: str) -> type:
        class Processor:
            def __call__(self, x: int) -> int:
                return x + 1

        Processor.__module__ = module
        return Processor

    assert type_name(make("__main__")) == type_name(make("engine.model"))


def test_a_class_without_source_is_told_by_its_code() -> None:
    """A class made in a notebook or by exec still changes its name when its code changes."""

    def make(constant: int) -> type:
        scope: dict[str, Any] = {"__name__": "notebook"}
        exec(f"class P:\n    def __call__(self, x):\n        return x + {constant}\n", scope)
        return scope["P"]  # type: ignore[no-any-return]

    assert type_name(make(1)) == type_name(make(1))
    assert type_name(make(1)) != type_name(make(2))


def test_a_base_class_of_the_user_counts() -> None:
    """A subclass that changes nothing itself changes with its base."""

    def make(constant: int) -> type:
        scope: dict[str, Any] = {"__name__": "notebook"}
        exec(f"class B:\n    def f(self):\n        return {constant}\nclass P(B):\n    pass\n", scope)
        return scope["P"]  # type: ignore[no-any-return]

    assert type_name(make(1)) != type_name(make(2))


def test_decorated_functions_tell_what_they_wrap() -> None:
    """A decorator does not hide the function inside, and is not hidden by it."""

    def loud(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any) -> Any:
            return function(*args)

        return run

    def one() -> int:
        return 1

    assert function_name(loud(one)).endswith(f" <- {function_name(one)}")
    assert function_name(torch.no_grad()(one)) != function_name(loud(one)) != function_name(one)


def test_wrappers_of_our_own_are_seen_through() -> None:
    """What a session puts around a call must not make the pipeline another one."""
    scope: dict[str, Any] = {"__name__": "cachekit.hooks.attach", "functools": functools}
    source = """
def wrap(f):
    @functools.wraps(f)
    def run(*a):
        return f(*a)
    return run

def hook():
    pass
"""
    exec(source, scope)

    assert unwrap_ours(scope["wrap"](math.sin)) is math.sin
    assert unwrap_ours(scope["hook"]) is None
    assert unwrap_ours(math.cos) is math.cos
