"""Reads one JSON object that somebody else wrote, by name: every value has its type, its pattern and its limit checked.

What the names mean is for ``document.py`` to say. Values here come from ``canonical.loads``, so they are plain JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from cachekit.bundle.limits import Limits
from cachekit.errors import CorruptError, LimitError, NewerSchemaError

DIGEST = re.compile(r"[0-9a-f]{64}")
Item = TypeVar("Item")


class Fields:
    """One JSON object, read by name with the type checked; errors name the place."""

    def __init__(self, value: Any, place: str, limits: Limits) -> None:
        if not isinstance(value, dict):
            raise CorruptError(f"{place} is not an object")
        self._value = value
        self._place = place
        self._limits = limits

    @property
    def limits(self) -> Limits:
        """What the document is read under."""
        return self._limits

    def refuse_newer(self, schema: int) -> None:
        """Refuse a document that names a later reader than `schema`.

        Raises:
            NewerSchemaError: it does.
        """
        oldest = self.integer("min_reader")
        if self.integer("schema") < 1 or oldest < 1:
            raise CorruptError(f"{self._place} has no valid schema")
        if oldest > schema:
            raise NewerSchemaError(
                f"{self._place} needs a release that reads schema {oldest}; this one reads {schema}: upgrade cachekit"
            )

    def value(self, name: str) -> Any:
        """Return whatever is under `name`."""
        try:
            return self._value[name]
        except KeyError:
            raise CorruptError(f"{self._place} lacks {name!r}") from None

    def has(self, name: str) -> bool:
        """Tell whether there is anything under `name`."""
        return name in self._value

    def text(self, name: str, limit: int | None = None) -> str:
        """Return text of at most `limit` characters, by default as many as a name may have."""
        value, limit = self.value(name), self._limits.max_name_chars if limit is None else limit
        if not isinstance(value, str) or not _is_unicode(value):
            raise CorruptError(f"{self._place}: {name} is not text")
        if len(value) > limit:
            raise LimitError(f"{self._place}: {name} has {len(value)} characters; at most {limit} are read")
        return value

    def digest(self, name: str) -> str:
        """Return 64 hex digits."""
        value = self.text(name)
        if DIGEST.fullmatch(value) is None:
            raise CorruptError(f"{self._place}: {name} is not a sha256 in hex")
        return value

    def integer(self, name: str, limit: int | None = None) -> int:
        """Return an integer from 0 to `limit`, by default the largest that is read."""
        value, limit = self.value(name), self._limits.max_integer if limit is None else limit
        if type(value) is not int or value < 0:
            raise CorruptError(f"{self._place}: {name} is not a natural number")
        if value > limit:
            raise LimitError(f"{self._place}: {name} is larger than {limit}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object."""
        value = self.value(name)
        if not isinstance(value, dict):
            raise CorruptError(f"{self._place}: {name} is not an object")
        return value

    def array(self, name: str, limit: int) -> list[Any]:
        """Return a list of at most `limit` items."""
        value = self.value(name)
        if not isinstance(value, list):
            raise CorruptError(f"{self._place}: {name} is not a list")
        if len(value) > limit:
            raise LimitError(f"{self._place}: {len(value)} {name}; at most {limit} are read")
        return value

    def texts(self, name: str, limit: int, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """Return texts that all match `pattern`."""
        values = self.array(name, limit)
        if not all(isinstance(value, str) and pattern.fullmatch(value) for value in values):
            raise CorruptError(f"{self._place}: {name} holds something else")
        return tuple(values)

    def items(self, name: str, limit: int, read: Callable[[Fields], Item]) -> tuple[Item, ...]:
        """Return what `read` makes of each object in a list of at most `limit`."""
        values = self.array(name, limit)
        return tuple(
            read(Fields(value, f"{name}[{index}]", self._limits)) for index, value in enumerate(values)
        )


def refuse_text(text: str, what: str, limit: int) -> None:
    """Refuse text that is no Unicode or has more than `limit` characters.

    Raises:
        CorruptError: it is none.
        LimitError: it has more.
    """
    if not _is_unicode(text):
        raise CorruptError(f"{what} is not text")
    if len(text) > limit:
        raise LimitError(f"{what} has {len(text)} characters; at most {limit} are read")


def _is_unicode(text: str) -> bool:
    """Tell whether `text` can be written anywhere: JSON can say half of a surrogate pair, a database cannot."""
    try:
        return text.isascii() or bool(text.encode("utf-8"))
    except UnicodeEncodeError:
        return False
