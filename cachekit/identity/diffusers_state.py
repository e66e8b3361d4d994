"""Process-wide choices of diffusers that decide what is compiled, read without importing diffusers.

diffusers reads them from the environment when it is imported; before that, what it would read is told, so that the
answer does not depend on import order.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Final

from cachekit.identity.attention import backend_name

_DISPATCH: Final = "diffusers.models.attention_dispatch"
_GGUF: Final = "diffusers.quantizers.gguf.utils"
_MIN_CAPABILITY: Final = 7


def attention_backend() -> str:
    """The attention back end that processors use unless they name one."""
    registry: Any = getattr(sys.modules.get(_DISPATCH), "_AttentionBackendRegistry", None)
    active = getattr(registry, "_active_backend", None)
    return backend_name(active) if active is not None else os.environ.get("DIFFUSERS_ATTN_BACKEND", "native")


def gguf_kernels() -> bool:
    """Whether GGUF layers are computed by downloaded CUDA kernels instead of torch operations."""
    loaded = sys.modules.get(_GGUF)
    if loaded is not None:
        return getattr(loaded, "ops", None) is not None
    if os.environ.get("DIFFUSERS_GGUF_CUDA_KERNELS", "false").lower() not in ("1", "true", "yes"):
        return False
    import torch

    able = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= _MIN_CAPABILITY
    return able and importlib.util.find_spec("kernels") is not None
