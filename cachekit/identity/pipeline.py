"""What a pipeline is, as far as compiled code depends on it: its denoisers.

Text encoders, VAE and scheduler do not count, since a plan does not compile them; neither does where the pipeline
came from. Works on diffusers pipelines, on anything that keeps its denoiser in an attribute named like theirs, and on
a plain ``torch.nn.Module``. Changes nothing.

    denoisers(pipe)               # [("unet", UNet2DConditionModel(...))]
    describe(pipe)["family"]      # "StableDiffusionXL"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cachekit.errors import ConfigurationError
from cachekit.identity.stable import stable, type_name

_DENOISER: Final = re.compile(
    r"((text|image)_)?unet(_\d+)?|super_res_(first|last)|(unconditional_)?transformer(_\d+)?"
    r"|(prior_)?prior|decoder|denoiser|dit"
)
_NOT_DENOISERS: Final = re.compile(r"Autoencoder|VQ|VAE|Encoder|TextModel|Upsampler")
_TASK: Final = re.compile(r"(Img2Img|Inpaint(ing)?|Pipeline)\Z")
_QUANTIZATION: Final = "quantization_config"
_WEIGHTLESS: Final = frozenset(
    {"torch_dtype", "dtype", "transformers_version", "architectures", "name_or_path"}
)


class Description(NamedTuple):
    """``components`` is JSON for the fingerprint; ``packages`` are the distributions that it depends on."""

    components: dict[str, Any]
    packages: frozenset[str]


def denoisers(pipe_or_module: Any) -> list[tuple[str, Any]]:
    """The modules that are compiled, as (name, module), in the order of the pipeline's own attributes.

    A plain module is its own denoiser, named ``module``. Modules wrapped by ``torch.compile`` are unwrapped.

    Raises:
        ConfigurationError: there is none; the message lists what was found instead.
    """
    import torch

    if isinstance(pipe_or_module, torch.nn.Module):
        return [("module", unwrapped(pipe_or_module))]
    modules = {
        name: unwrapped(value)
        for name, value in getattr(pipe_or_module, "__dict__", {}).items()
        if isinstance(value, torch.nn.Module)
    }
    found = [
        (name, module)
        for name, module in modules.items()
        if _DENOISER.fullmatch(name) and not _NOT_DENOISERS.search(type(module).__name__)
    ]
    if not found:
        parts = ", ".join(modules) or "no modules at all"
        kind = type(pipe_or_module).__name__
        raise ConfigurationError(f"no denoiser (unet, transformer, ...) in {kind}: it has {parts}")
    return found


def unwrapped(module: Any) -> Any:
    """The module inside ``torch.compile(module)``, or the module itself."""
    children = module.__dict__.get("_modules")
    return children.get("_orig_mod", module) if isinstance(children, dict) else module


def config_of(module: Any) -> Any:
    """The configuration a model carries, as it is; None if it carries none or that cannot be read."""
    try:
        return getattr(module, "config", None)
    except Exception:  # noqa: BLE001 - a property of users
        return None


def kind_of(name: str, module: Any) -> str:
    """``unet``, ``transformer`` or ``module``, from the class and the attribute it was found in."""
    class_name = type(module).__name__.lower()
    if "unet" in class_name or "unet" in name:
        return "unet"
    if repeated_blocks(module) or "transformer" in class_name + name or "dit" in class_name:
        return "transformer"
    return "transformer" if "prior" in name else "module"


def repeated_blocks(module: Any) -> tuple[str, ...]:
    """Class names of the blocks that diffusers compiles one by one; empty for U-Nets, which compile whole."""
    names = getattr(type(module), "_repeated_blocks", None) or ()
    return () if "unet" in type(module).__name__.lower() else tuple(names)


def device_of(module: Any) -> str:
    """Where the module's tensors are, e.g. ``cuda:0``; ``cpu`` if it has none."""
    for tensors in (module.parameters(), module.buffers()):
        for tensor in tensors:
            return str(tensor.device)
    return "cpu"


def family(pipe_or_module: Any) -> str:
    """``StableDiffusionXL`` for text-to-image, image-to-image and inpainting alike; a module's class otherwise."""
    import torch

    if isinstance(pipe_or_module, torch.nn.Module):
        return type_name(type(unwrapped(pipe_or_module)))
    name = type(pipe_or_module).__name__
    while (shorter := _TASK.sub("", name)) not in (name, ""):
        name = shorter
    return name


def describe(pipe_or_module: Any, *, attention_backend: str = "native") -> Description:
    """Everything about the pipeline that decides whether compiled code may be reused.

    ``attention_backend`` is diffusers' process-wide default, used where a processor names none.

    Raises:
        ConfigurationError: no denoiser was found.
    """
    packages: set[str] = set()
    found = {}
    for name, module in denoisers(pipe_or_module):
        found[name] = _denoiser(name, module, attention_backend, packages)
    return Description({"family": family(pipe_or_module), "denoisers": found}, frozenset(packages))


def _denoiser(name: str, module: Any, attention_backend: str, packages: set[str]) -> dict[str, Any]:
    from cachekit.identity.structure import examine

    structure = examine(module)
    packages |= structure.packages | structure.attention.packages(default_backend=attention_backend)
    return {
        "kind": kind_of(name, module),
        "class": type_name(type(module)),
        "config": _config(module, gguf="gguf" in structure.packages),
        **structure.describe(default_backend=attention_backend),
    }


def _config(module: Any, *, gguf: bool) -> dict[str, Any] | None:
    """The model's configuration without private keys and without where it came from.

    How a GGUF model is quantised is told by its tensors; the loader's own settings say nothing more.
    """
    config = config_of(module)
    try:
        if not isinstance(config, Mapping):
            config = config.to_dict() if hasattr(config, "to_dict") else {}
    except Exception as exc:  # noqa: BLE001 - an object of users
        return {"unreadable": type(exc).__name__}
    if not isinstance(config, Mapping) or not config:
        return None
    left_out = _WEIGHTLESS | ({_QUANTIZATION} if gguf else set())
    return {
        str(key): stable(_listed(value))
        for key, value in config.items()
        if not str(key).startswith("_") and key not in left_out and not _is_path(value)
    }


def _listed(value: Any) -> Any:
    to_dict = getattr(value, "to_dict", None)
    return to_dict() if callable(to_dict) else value


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and (value[:1] in ("/", "~", "\\") or value[1:3] in (":\\", ":/"))
