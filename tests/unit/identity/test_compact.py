"""Folding over layers keeps everything and reads well."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachekit.identity.compact import compact

# Machines that build and test are often busy: how long an example takes says nothing here.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_part = st.sampled_from(["a", "b", "0", "1", "2", "10", "01", "*"])
_path = st.lists(_part, min_size=1, max_size=4).map(".".join)
_entries = st.dictionaries(_path, st.sampled_from(["Q4", "Q8"]), max_size=8)


def test_layers_fold_into_ranges() -> None:
    """A mixed model's quant types fit on a few lines."""
    layers = {f"blocks.{n}.ff": "Q4_K" if n else "Q8_0" for n in range(12)} | {"proj": "F16"}

    assert compact(layers.items()) == {"blocks.*.ff": {"Q4_K": "1-11", "Q8_0": "0"}, "proj": "F16"}


def test_two_numbers_in_a_path_are_told_as_block_and_layer() -> None:
    """``down_blocks.1.attentions.0`` is place 1.0."""
    layers = {f"down.{b}.attn.{a}": "P" for b in range(2) for a in range(3)}

    assert compact(layers.items()) == {"down.*.attn.*": {"P": "0.0-2,1.0-2"}}


@relaxed
@given(_entries, _entries)
def test_folding_loses_nothing(a: dict[str, str], b: dict[str, str]) -> None:
    """Two models fold to the same lines only if every layer is the same."""
    starred = any("*" in path.split(".") for path in (*a, *b))

    assert (compact(a.items()) == compact(b.items())) == (a == b) or starred


@relaxed
@given(_entries)
def test_order_does_not_matter(entries: dict[str, str]) -> None:
    """Layers may be told in any order."""
    assert compact(reversed(entries.items())) == compact(entries.items())
