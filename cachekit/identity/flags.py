"""Process-wide switches of torch that decide what compiled code computes: precision, determinism, back ends.

All are read at each fingerprint, because an engine may flip one between two generations. They are told whatever the
device of the plan: torch puts most of them into its own keys for every graph.

TF32 is read through ``fp32_precision``, which the older ``allow_tf32`` and ``set_float32_matmul_precision`` set as
well; the old getters raise once somebody used the new setters. torch's keys hold the raw value, so ``none`` (never
set) and ``ieee`` (set, to full precision) are told apart here too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from cachekit.identity.stable import stable

_FP32: Final = tuple(
    (backend, operation)
    for backend, operations in (
        ("generic", ("all",)),
        ("cuda", ("all", "matmul", "conv", "rnn")),
        ("mkldnn", ("all", "matmul", "conv", "rnn")),
    )
    for operation in operations
)

_PRECISION: Final[Mapping[str, str]] = {
    "cublas_fp16_reduced_reduction": "_get_cublas_allow_fp16_reduced_precision_reduction",
    "cublas_bf16_reduced_reduction": "_get_cublas_allow_bf16_reduced_precision_reduction",
    "cublas_fp16_accumulation": "_get_cublas_allow_fp16_accumulation",
    "cpu_fp16_reduced_reduction": "_get_cpu_allow_fp16_reduced_precision_reduction",
    "math_sdp_reduced_reduction": "_get_math_sdp_allow_fp16_bf16_reduction",
}
_BACKENDS: Final[Mapping[str, str]] = {
    "sdp_flash": "_get_flash_sdp_enabled",
    "sdp_fa3": "_get_fa3_sdp_enabled",
    "sdp_fa4": "_get_fa4_sdp_enabled",
    "sdp_mem_efficient": "_get_mem_efficient_sdp_enabled",
    "sdp_math": "_get_math_sdp_enabled",
    "sdp_cudnn": "_get_cudnn_sdp_enabled",
    "sdp_overrideable": "_get_overrideable_sdp_enabled",
    "sdp_priority": "_get_sdp_priority_order",
    "cudnn": "_get_cudnn_enabled",
    "mkldnn": "_get_mkldnn_enabled",
    "nnpack": "_get_nnpack_enabled",
    "miopen_immediate": "_get_miopen_immediate",
    "linalg": "_get_linalg_preferred_backend",
    "blas": "_get_blas_preferred_backend",
    "cublaslt_grouped_gemm": "_get_cublaslt_prefer_grouped_gemm",
    "rocm_flash": "_get_rocm_fa_preferred_backend",
}
_DETERMINISM: Final[Mapping[str, str]] = {
    "algorithms": "_get_deterministic_algorithms",
    "warn_only": "_get_deterministic_algorithms_warn_only",
    "fill_uninitialized": "_get_deterministic_fill_uninitialized_memory",
    "cudnn": "_get_cudnn_deterministic",
    "mkldnn": "_get_mkldnn_deterministic",
}
"""Names of ours by getters of ``torch._C``: properties of ``torch.backends`` that torch has no other name for."""


def current() -> dict[str, Any]:
    """All switches as JSON: ``precision``, ``backends``, ``determinism``, ``dtypes``.

    A switch that this torch lacks is left out; one that cannot be read is told as unreadable.
    """
    return {
        "precision": {**_fp32_precision(), **_read(_PRECISION)},
        "backends": _read(_BACKENDS),
        "determinism": _read(_DETERMINISM),
        "dtypes": dtypes(),
    }


def dtypes() -> dict[str, Any]:
    """The default dtype, and the autocast dtype of each device type where this thread has autocast on."""
    autocast = {}
    for device_type in _autocast_devices():
        if torch.is_autocast_enabled(device_type):
            autocast[device_type] = str(torch.get_autocast_dtype(device_type))
    return {"default": str(torch.get_default_dtype()), "autocast": autocast}


def _autocast_devices() -> list[str]:
    supported = getattr(torch._C, "_autocast_supported_devices", None)
    return list(supported()) if supported is not None else ["cpu", "cuda", "xpu"]


def _fp32_precision() -> dict[str, Any]:
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:
        names = {"cublas_tf32": "_get_cublas_allow_tf32", "cudnn_tf32": "_get_cudnn_allow_tf32"}
        return {**_read(names), **_read({"float32_matmul": "_get_float32_matmul_precision"})}
    return {
        f"{backend}_{operation}": _value(functools.partial(getter, backend, operation))
        for backend, operation in _FP32
    }


def _read(names: Mapping[str, str]) -> dict[str, Any]:
    found = {name: getattr(torch._C, getter, None) for name, getter in names.items()}
    return {name: _value(getter) for name, getter in found.items() if getter is not None}


def _value(getter: Callable[[], Any]) -> Any:
    try:
        return stable(getter())
    except RuntimeError as exc:  # torch refuses to answer after a mix of its old and new interfaces
        return f"unreadable:{type(exc).__name__}"
