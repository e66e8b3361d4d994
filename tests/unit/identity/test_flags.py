"""Every switch of torch that changes what code computes is told, by name, and told back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from cachekit.identity import Fingerprint, Plan, fingerprint, flags

MODULE = torch.nn.Linear(2, 2)


def now() -> Fingerprint:
    """The fingerprint of one module with the switches as they are."""
    return fingerprint(MODULE, Plan("cpu"))


@contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _call(setter: Callable[..., Any], value: Any, back: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(back)


MATMUL = torch.backends.cuda.matmul
SWITCHES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "precision.cublas_fp16_reduced_reduction": lambda: _attribute(
        MATMUL, "allow_fp16_reduced_precision_reduction", False
    ),
    "precision.cublas_bf16_reduced_reduction": lambda: _attribute(
        MATMUL, "allow_bf16_reduced_precision_reduction", False
    ),
    "precision.cublas_fp16_accumulation": lambda: _attribute(MATMUL, "allow_fp16_accumulation", True),
    "precision.math_sdp_reduced_reduction": lambda: _call(
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp, True, False
    ),
    "determinism.algorithms": lambda: _call(torch.use_deterministic_algorithms, True, False),
    "determinism.cudnn": lambda: _attribute(torch.backends.cudnn, "deterministic", True),
    "determinism.fill_uninitialized": lambda: _attribute(
        torch.utils.deterministic, "fill_uninitialized_memory", False
    ),
    "backends.cudnn": lambda: _attribute(torch.backends.cudnn, "enabled", False),
    "backends.sdp_flash": lambda: _call(torch.backends.cuda.enable_flash_sdp, False, True),
    "backends.sdp_mem_efficient": lambda: _call(torch.backends.cuda.enable_mem_efficient_sdp, False, True),
    "backends.sdp_math": lambda: _call(torch.backends.cuda.enable_math_sdp, False, True),
    "backends.sdp_cudnn": lambda: _call(torch.backends.cuda.enable_cudnn_sdp, False, True),
    "dtypes.default": lambda: _call(torch.set_default_dtype, torch.float64, torch.float32),
    "dtypes.autocast.cpu": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    # torch.autocast("cuda") only warns where there is no GPU.
    "dtypes.autocast.cuda": lambda: _call(partial(torch.set_autocast_enabled, "cuda"), True, False),
}


@pytest.mark.parametrize("path", SWITCHES)
def test_switch_is_named_and_put_back(path: str) -> None:
    """One switch, one difference; after it is put back the id is the first one."""
    before = now()
    with SWITCHES[path]():
        told = {difference.path for difference in before.diff(now())}

    # torch lets deterministic algorithms set an Inductor setting of their own.
    assert told - {"toolchain.config.inductor.deterministic"} == {f"toolchain.flags.{path}"}
    assert now() == before


def test_warn_only_determinism() -> None:
    """Warn-only is a mode of its own."""
    torch.use_deterministic_algorithms(True)
    strict = now()
    torch.use_deterministic_algorithms(True, warn_only=True)
    warn_only = now()
    torch.use_deterministic_algorithms(False)

    assert [each.path for each in strict.diff(warn_only)] == ["toolchain.flags.determinism.warn_only"]


@pytest.mark.usefixtures("restored_flags")
@pytest.mark.parametrize(
    ("switch", "paths"),
    [
        (lambda: setattr(MATMUL, "allow_tf32", True), {"cuda_matmul"}),
        (lambda: setattr(MATMUL, "fp32_precision", "tf32"), {"cuda_matmul"}),
        (lambda: setattr(torch.backends.cudnn, "allow_tf32", False), {"cuda_conv", "cuda_rnn"}),
        (lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"), {"cuda_conv"}),
        (lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"), {"mkldnn_matmul"}),
        (lambda: torch.set_float32_matmul_precision("high"), {"cuda_matmul", "mkldnn_matmul"}),
    ],
    ids=[
        "allow_tf32",
        "fp32_precision",
        "cudnn.allow_tf32",
        "cudnn.conv",
        "mkldnn",
        "float32_matmul_precision",
    ],
)
def test_float32_precision(switch: Callable[[], None], paths: set[str]) -> None:
    """TF32 and its relatives, through the old interface and the new one."""
    before = now()
    switch()

    assert {each.path for each in before.diff(now())} == {
        f"toolchain.flags.precision.{path}" for path in paths
    }


@pytest.mark.usefixtures("restored_flags")
def test_both_interfaces_of_tf32_give_one_id() -> None:
    """``allow_tf32`` and ``fp32_precision`` set the same switch, and torch keys on that switch."""
    MATMUL.allow_tf32 = True
    old = now()
    MATMUL.fp32_precision = "none"
    MATMUL.fp32_precision = "tf32"  # from here on torch refuses to answer the old question

    assert now() == old


@pytest.mark.usefixtures("restored_flags")
def test_tf32_medium_high_and_highest() -> None:
    """The three settings of ``set_float32_matmul_precision`` are three programs."""
    found = set()
    for precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
        found.add(now().id)

    assert len(found) == 3


def test_a_switch_that_cannot_be_read_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises from a getter after a mix of its interfaces: the fingerprint says so and goes on."""

    def refuse() -> None:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch._C, "_get_cublas_allow_fp16_accumulation", refuse)

    assert flags.current()["precision"]["cublas_fp16_accumulation"] == "unreadable:RuntimeError"


def test_a_switch_that_this_torch_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older and newer torch have other switches; none of them is needed."""
    monkeypatch.delattr(torch._C, "_get_cpu_allow_fp16_reduced_precision_reduction", raising=False)

    assert "cpu_fp16_reduced_reduction" not in flags.current()["precision"]


def test_without_the_new_precision_interface_the_old_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without ``fp32_precision`` is asked the old questions."""
    monkeypatch.delattr(torch._C, "_get_fp32_precision_getter")

    found = flags.current()["precision"]

    assert (found["cublas_tf32"], found["cudnn_tf32"], found["float32_matmul"]) == (False, True, "highest")


def test_every_switch_of_this_torch_is_known() -> None:
    """Fails when torch gains a switch with a name like these, so that somebody decides whether it counts."""
    known = {*flags._PRECISION.values(), *flags._BACKENDS.values(), *flags._DETERMINISM.values()}
    elsewhere = {
        "_get_fp32_precision_getter",
        "_get_float32_matmul_precision",  # the old question to the same switches
        "_get_cublas_allow_tf32",
        "_get_cudnn_allow_tf32",
        "_get_onednn_allow_tf32",
        "_get_blas_default_backend",  # what "default" means for this build
        "_get_privateuse1_backend_name",
        "_get_dtensor_allow_implicit_replication",  # distributed
        "_get_cudnn_benchmark",  # chooses an algorithm at run time, in no compiled code
        "_get_cudnn_depthwise_kernel",  # the same
        "_get_cudnn_batch_norm_reserve_space_size",
    }
    parts = (
        "precision",
        "allow_",
        "_sdp_",
        "cudnn",
        "cublas",
        "mkldnn",
        "onednn",
        "determin",
        "tf32",
        "backend",
    )
    found = {
        name for name in dir(torch._C) if name.startswith("_get_") and any(part in name for part in parts)
    }

    assert found - known - elsewhere == set()
