"""The fingerprint as a value: id, equality, comparison, storage."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachekit.errors import ConfigurationError, CorruptError, NewerSchemaError
from cachekit.identity.fingerprint import ABSENT, SCHEMA, Difference, Fingerprint, nearest

# Machines that build and test are often busy: how long an example takes says nothing here.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
_components = st.dictionaries(st.text(max_size=4).filter(lambda key: key != "schema"), _json, max_size=5)


def _shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled(value[key]) for key in reversed(list(value))}
    return [_shuffled(item) for item in value] if isinstance(value, list) else value


def test_id_is_the_hash_of_the_canonical_json_and_names_its_schema() -> None:
    """Anybody can recompute an id from a stored document, and the schema is part of it."""
    made = Fingerprint.of({"plan": {"device": "cpu"}, "eps": 1e-06})

    assert made.canonical == b'{"eps":1e-06,"plan":{"device":"cpu"},"schema":1}'
    assert made.id == hashlib.sha256(made.canonical).hexdigest()
    assert made.components["schema"] == SCHEMA


@relaxed
@given(_components)
def test_id_does_not_depend_on_the_order_of_dicts(components: dict[str, Any]) -> None:
    """The same components in any order are the same fingerprint."""
    assert Fingerprint.of(_shuffled(components)) == Fingerprint.of(components)


@relaxed
@given(_components, _components)
def test_diff_is_empty_exactly_if_the_ids_are_equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    """No two ids differ without a component that explains it, and none is named without reason."""
    mine, theirs = Fingerprint.of(a), Fingerprint.of(b)

    assert (mine.diff(theirs) == ()) == (mine.id == theirs.id)
    assert [(d.path, d.theirs, d.mine) for d in theirs.diff(mine)] == list(mine.diff(theirs))


@relaxed
@given(_components, st.data())
def test_one_component_that_changes_is_the_one_that_is_named(
    components: dict[str, Any], data: st.DataObject
) -> None:
    """Any single change makes another id, and the difference is that component with both its values."""
    named = {f"k{number}": value for number, value in enumerate(components.values())} | {"last": 0}
    name = data.draw(st.sampled_from(sorted(named)))
    mine = Fingerprint.of(named)
    theirs = Fingerprint.of({**named, name: ["another", named[name]]})

    assert mine.id != theirs.id
    (found,) = mine.diff(theirs)
    assert (found.path, found.theirs) == (name, ["another", mine.components[name]])


@relaxed
@given(st.lists(_components, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_nearest_is_one_of_the_candidates_in_any_order(found: list[dict[str, Any]], random: Any) -> None:
    """The answer does not depend on the order, and a candidate that is equal is the nearest."""
    candidates = [Fingerprint.of(one) for one in found]
    target, shuffled = candidates[0], list(candidates)
    random.shuffle(shuffled)

    assert nearest(target, shuffled) == nearest(target, candidates) == (target, ())


@relaxed
@given(st.binary(max_size=60) | st.text(max_size=60))
def test_anything_gives_a_fingerprint_or_a_named_error(data: bytes | str) -> None:
    """No foreign exception leaves the reader, whatever was stored."""
    with contextlib.suppress(CorruptError, NewerSchemaError):
        assert Fingerprint.from_json(Fingerprint.from_json(data).to_json())


@relaxed
@given(_components)
def test_json_round_trip(components: dict[str, Any]) -> None:
    """What is stored and read back is the same fingerprint, however the file was formatted."""
    made = Fingerprint.of(components)

    assert Fingerprint.from_json(made.to_json()) == made
    assert Fingerprint.from_json(json.dumps(made.components, indent=2).encode()) == made


@pytest.mark.parametrize(("mine", "theirs"), [(1, 1.0), (1, True), (0, False), ([], {}), (None, ABSENT)])
def test_values_that_python_confuses_are_told_apart(mine: Any, theirs: Any) -> None:
    """Equal in Python is not equal in JSON: 1, 1.0 and true are three settings."""
    other = {} if theirs is ABSENT else {"value": theirs}

    assert Fingerprint.of({"value": mine}).diff(Fingerprint.of(other)) == (Difference("value", mine, theirs),)


def test_differences_are_sorted_and_read_well() -> None:
    """People read them in explain: path, mine, theirs."""
    mine = Fingerprint.of({"b": {"x": 1}, "a": {"flag": True}})
    theirs = Fingerprint.of({"b": {"x": 2}, "a": {}})

    assert [str(each) for each in mine.diff(theirs)] == ["a.flag: true / (absent)", "b.x: 1 / 2"]


def test_components_cannot_be_changed_through_the_copy() -> None:
    """A fingerprint keeps its id, whatever a caller does with the components it was given."""
    made = Fingerprint.of({"plan": {"device": "cpu"}})
    made.components["plan"]["device"] = "cuda:0"

    assert made.components["plan"]["device"] == "cpu"
    with pytest.raises(AttributeError):
        made.id = "0" * 64  # type: ignore[misc]


def test_the_maker_may_change_what_it_passed_in() -> None:
    """The value does not share structure with the caller's dict."""
    components = {"plan": {"device": "cpu"}}
    made = Fingerprint.of(components)
    components["plan"]["device"] = "cuda:0"

    assert made.components["plan"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", CorruptError),
        ("[]", CorruptError),
        ("{}", CorruptError),
        ('{"schema": 0}', CorruptError),
        ('{"schema": true}', CorruptError),
        ('{"schema": "1"}', CorruptError),
        ('{"schema": 1, "schema": 1}', CorruptError),
        ('{"schema": 1, "x": NaN}', CorruptError),
        ("\udcff", CorruptError),
        ('{"schema": 2}', NewerSchemaError),
    ],
)
def test_bad_documents_are_named_errors(text: str, error: type[Exception]) -> None:
    """A stored fingerprint that is damaged, or newer than this release, never surfaces as another exception."""
    with pytest.raises(error):
        Fingerprint.from_json(text.encode("utf-8", "surrogateescape"))


def test_values_without_a_json_form_are_refused() -> None:
    """Nothing that could carry an address gets into an id by its repr."""
    with pytest.raises(ConfigurationError):
        Fingerprint.of({"value": object()})


def test_nearest_prefers_the_same_model_on_another_toolchain() -> None:
    """A miss is explained by the profile somebody would recognise, not by another model that differs in less."""
    target = Fingerprint.of(
        {"pipeline": {"family": "A", "x": 1}, "toolchain": {"torch": "2", "gpu": "H200", "tf32": 1}}
    )
    same_model = Fingerprint.of(
        {"pipeline": {"family": "A", "x": 1}, "toolchain": {"torch": "1", "gpu": "B", "tf32": 0}}
    )
    other_model = Fingerprint.of(
        {"pipeline": {"family": "B", "x": 1}, "toolchain": {"torch": "2", "gpu": "H200", "tf32": 1}}
    )

    found = nearest(target, [other_model, same_model])

    assert found is not None
    assert found[0] == same_model
    assert [each.path for each in found[1]] == ["toolchain.gpu", "toolchain.tf32", "toolchain.torch"]


def test_nearest_does_not_depend_on_order_and_may_find_none() -> None:
    """Ties go to the smaller id; no candidates, no answer."""
    target = Fingerprint.of({"x": 0})
    candidates = [Fingerprint.of({"x": value}) for value in (1, 2, 3)]

    assert nearest(target, candidates) == nearest(target, reversed(candidates))
    assert nearest(target, []) is None
