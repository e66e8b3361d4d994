"""Follows a pickle without running it: which globals it names, what it would call, and with what.

A small abstract interpreter of the opcodes that CPython's picklers write (protocols 2 to 5). It keeps a stack and a
memo of what can be known about each value: short text, that it is a number, text, bytes or a global, the members of a
tuple, or nothing. Lists, dicts and instances are opaque. Whether a global or a call is acceptable is for the `Rules`
to say (``scan.py``); this module only refuses what no pickler writes.

Nothing is imported, built or decoded, and big payloads are stepped over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol

from cachekit.bundle.limits import Limits
from cachekit.bundle.opcodes import (
    BYTES_WIDTH,
    GET_WIDTH,
    LONG_WIDTH,
    MAX_NAME,
    MEMOIZE,
    NUMBERS,
    OPAQUE,
    PUT_WIDTH,
    SKIPPED,
    STOP,
    TEXT_WIDTH,
    lines,
    sized,
)
from cachekit.errors import CorruptError, LimitError


class Kind(Enum):
    """What is known of a value that is neither short text, nor bytes, nor a global, nor a tuple."""

    NUMBER = "a number, a truth value or None"
    TEXT = "text too long to be a name"
    EXPRESSION = "a symbolic expression"


class Span(NamedTuple):
    """Bytes inside the pickle: [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Global:
    """Something the pickle imports. A `guarded` one may be called under its rule and used in no other way."""

    module: str
    name: str
    guarded: bool = False

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


Value = Any
"""`bytes` (short text), `Kind`, `Span`, `Global`, `Items` of values, or None where nothing is known."""


class Items(tuple[Value, ...]):  # noqa: SLOT001  (a tuple subclass cannot have any)
    """A tuple of values that knows how many tuples are reached from it, and how deep they nest."""

    reached = 1
    depth = 1


class Rules(Protocol):
    """What a pickle may do."""

    persistent: bool
    """Whether it may refer to objects that its loader supplies."""
    limits: Limits
    opcodes: Iterator[int]
    """Runs out when too many opcodes were followed; a pickle and those nested in it share one."""

    def found(self, module: str, name: str) -> Global:
        """Judge a global; raises to refuse it."""

    def called(self, target: Global, arguments: Value) -> Value:
        """Judge a call; returns what is known of its result, raises to refuse it."""


def follow(data: bytes, rules: Rules, start: int = 0) -> int:
    """Follow the pickle that begins at `start` and return where it ends.

    Raises:
        CorruptError: it is not a pickle, or does what no pickler writes.
        LimitError: it has more opcodes than any artifact.
        TrustError: `rules` refused something.
    """
    return _Machine(data, rules).run(start)


_MARK = object()


class _Machine:
    def __init__(self, data: bytes, rules: Rules) -> None:
        self._data = data
        self._rules = rules
        self._stack: list[Value] = []
        self._memo: dict[int, Value] = {}

    def run(self, start: int) -> int:
        try:
            return self._run(start)
        except (IndexError, KeyError, ValueError) as exc:
            raise CorruptError("pickle is cut short, or uses what it never stored") from exc

    def _run(self, at: int) -> int:
        # The hot loop: a bundle has millions of these, so nothing is looked up twice.
        data, memo, stack, push = self._data, self._memo, self._stack, self._stack.append
        number, steps = Kind.NUMBER, self.STEPS
        for _ in self._rules.opcodes:
            code = data[at]
            at += 1
            if code == 0x8C:
                end = at + 1 + data[at]
                push(data[at + 1 : end])
                at = end
                if data[at] == MEMOIZE:
                    memo[len(memo)] = stack[-1]
                    at += 1
            elif code == MEMOIZE:
                memo[len(memo)] = self._top()
            elif code in NUMBERS:
                push(number)
                at += NUMBERS[code]
            elif code in GET_WIDTH:
                end = at + GET_WIDTH[code]
                push(memo[int.from_bytes(data[at:end], "little")])
                at = end
            elif code == 0x28:
                push(_MARK)
            elif code in OPAQUE:
                push(None)
            elif code in steps:
                steps[code](self)
            elif code == STOP:
                self._pop()
                if stack:
                    break
                return at
            else:
                at = self._rare(code, at)
        else:
            raise LimitError(f"pickle has more than {self._rules.limits.max_opcodes} opcodes")
        raise CorruptError("pickle leaves more or less than one object")

    def _rare(self, code: int, at: int) -> int:
        """Do an opcode with an operand that is not worth a place in the loop; returns where the next one is."""
        if code in TEXT_WIDTH:
            start, at = sized(self._data, at, TEXT_WIDTH[code])
            self._stack.append(self._data[start:at] if at - start <= MAX_NAME else Kind.TEXT)
        elif code in BYTES_WIDTH:
            start, at = sized(self._data, at, BYTES_WIDTH[code])
            self._stack.append(Span(start, at))
        elif code in LONG_WIDTH:
            _, at = sized(self._data, at, LONG_WIDTH[code])
            self._stack.append(Kind.NUMBER)
        elif code == 0x96:  # BYTEARRAY8: opaque, because it can change
            _, at = sized(self._data, at, 8)
            self._stack.append(None)
        elif code in PUT_WIDTH:
            end = at + PUT_WIDTH[code]
            self._put(int.from_bytes(self._data[at:end], "little"))
            at = end
        elif code in SKIPPED:
            at += SKIPPED[code]
        elif code == 0x63:  # GLOBAL: two lines
            middle, end = lines(self._data, at)
            self._import(self._data[at:middle], self._data[middle + 1 : end])
            at = end + 1
        else:
            raise CorruptError(f"opcode 0x{code:02x} is not one that torch's pickler writes")
        return at

    def _put(self, place: int) -> None:
        # Picklers count upwards; Python's unpickler makes room for every place below, up to 32 GB of it.
        if place > len(self._memo):
            raise CorruptError("pickle stores something far from where the next thing belongs")
        self._memo[place] = self._top()

    def _top(self) -> Value:
        top = self._stack[-1]
        if top is _MARK:
            raise CorruptError("pickle stores a mark")
        return top

    def _pop(self) -> Value:
        """Take a value that becomes part of another one, which a guarded global must not."""
        value = self._stack.pop()
        if value is _MARK:
            raise CorruptError("pickle uses a mark as a value")
        if isinstance(value, Global) and value.guarded:
            self._rules.called(value, None)
        return value

    def _pop_to_mark(self) -> list[Value]:
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:  # where there is none, this runs off the front
            at -= 1
        items = stack[at + 1 :]
        del stack[at:]
        if Global in map(type, items):  # seldom, and looking one by one takes long
            for item in reversed(items):
                if isinstance(item, Global) and item.guarded:
                    self._rules.called(item, None)
        return items

    def _import(self, module: Value, name: Value) -> None:
        if not isinstance(module, bytes) or not isinstance(name, bytes):
            raise CorruptError("pickle imports under a computed name")
        try:
            self._stack.append(self._rules.found(module.decode("utf-8"), name.decode("utf-8")))
        except UnicodeDecodeError as exc:
            raise CorruptError("pickle imports under a name that is not text") from exc

    def _changed(self) -> None:
        """Refuse to change anything but an instance or container that the pickle made."""
        if (
            not self._stack
            or isinstance(self._stack[-1], (bytes, Global, tuple, Span))
            or self._stack[-1] is _MARK
        ):
            raise CorruptError("pickle changes something that it did not make")

    def _call(self) -> None:
        arguments, target = self._pop(), self._stack.pop()
        if not isinstance(target, Global) or not isinstance(arguments, Items):
            raise CorruptError(
                "pickle calls something that it computed, or with something that is not a tuple"
            )
        self._stack.append(self._rules.called(target, arguments))

    def _call_with_names(self) -> None:
        self._pop()  # keyword arguments are a dict, so opaque; those of an allowed class are as good as its state
        self._call()

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._import(module, name)

    def _add_one(self) -> None:
        self._pop()
        self._changed()

    def _add_pair(self) -> None:
        self._pop()
        self._add_one()

    def _add_marked(self) -> None:
        self._pop_to_mark()
        self._changed()

    def _tuple(self, size: int) -> None:
        items = [self._pop() for _ in range(size)]
        items.reverse()
        self._push_tuple(items)

    def _tuple_marked(self) -> None:
        self._push_tuple(self._pop_to_mark())

    def _push_tuple(self, values: list[Value]) -> None:
        """Make a tuple, unless one that holds itself many times over: a billion laughs for whoever hashes it."""
        items = Items(values)
        inner = [item for item in values if isinstance(item, Items)]
        if inner:
            items.reached = 1 + sum(item.reached for item in inner)
            items.depth = 1 + max(item.depth for item in inner)
            limits = self._rules.limits
            if items.reached > limits.max_tuples or items.depth > limits.max_tuple_depth:
                raise LimitError(f"pickle nests tuples {items.depth} deep, {items.reached} in one")
        self._stack.append(items)

    def _container_marked(self) -> None:
        self._pop_to_mark()
        self._stack.append(None)

    def _persistent(self) -> None:
        self._pop()
        if not self._rules.persistent:
            raise CorruptError("pickle refers to an object outside itself")
        self._stack.append(None)

    STEPS: ClassVar[Mapping[int, Callable[[_Machine], Any]]] = {
        0x93: _stack_global,
        0x52: _call,  # REDUCE
        0x81: _call,  # NEWOBJ
        0x92: _call_with_names,  # NEWOBJ_EX
        0x62: _add_one,  # BUILD
        0x61: _add_one,  # APPEND
        0x73: _add_pair,  # SETITEM
        0x65: _add_marked,  # APPENDS
        0x75: _add_marked,  # SETITEMS
        0x90: _add_marked,  # ADDITEMS
        0x29: lambda self: self._tuple(0),
        0x85: lambda self: self._tuple(1),
        0x86: lambda self: self._tuple(2),
        0x87: lambda self: self._tuple(3),
        0x74: _tuple_marked,
        0x91: _container_marked,  # FROZENSET
        0x30: _pop,
        0x31: _pop_to_mark,
        0x51: _persistent,  # BINPERSID
    }
