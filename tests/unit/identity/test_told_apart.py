"""Everything that changes compiled code gives another fingerprint, and the difference is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import pytest
import torch
from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter

from cachekit.identity import Fingerprint, Plan, fingerprint

CPU = Plan("cpu")
Maker = Callable[..., Any]
Quant = gguf.GGMLQuantizationType


def paths(mine: Any, theirs: Any, plan: Plan | None = None, other_plan: Plan | None = None) -> set[str]:
    """The components that differ, after checking that the ids do."""
    a, b = _as_fingerprint(mine, plan), _as_fingerprint(theirs, other_plan or plan)
    assert a.id != b.id
    return {difference.path for difference in a.diff(b)}


def _as_fingerprint(value: Any, plan: Plan | None) -> Fingerprint:
    return value if isinstance(value, Fingerprint) else fingerprint(value, plan or CPU)


def quantise(module: torch.nn.Module, *kinds: Quant) -> torch.nn.Module:
    """Make each of the module's Linears a GGUF layer, the quant types in turn."""
    linears = [
        (parent, name, layer)
        for parent in module.modules()
        for name, layer in parent.named_children()
        if type(layer) is torch.nn.Linear and layer.in_features % 32 == 0
    ]
    for index, (parent, name, layer) in enumerate(linears):
        kind = kinds[index % len(kinds)]
        new = GGUFLinear(
            layer.in_features, layer.out_features, layer.bias is not None, compute_dtype=torch.float32
        )
        data = torch.from_numpy(gguf.quants.quantize(layer.weight.detach().numpy(), kind))
        new.weight, new.bias = GGUFParameter(data, quant_type=kind), layer.bias
        setattr(parent, name, new)
    return module


def layer_of_gguf(module: torch.nn.Module) -> GGUFLinear:
    """Any one GGUF layer."""
    return next(part for part in module.modules() if isinstance(part, GGUFLinear))


# --- model -----------------------------------------------------------------------------------------------------------


def test_unet_and_transformer(unet: Maker, flux: Maker) -> None:
    """They are different kinds of denoiser and are compiled in different ways."""
    told = paths(unet(), flux())

    assert {"pipeline.denoisers.module.kind", "pipeline.denoisers.module.class", "pipeline.family"} <= told


def test_two_sizes_of_one_family(flux: Maker) -> None:
    """Same class, one block more: named in the config and in the structure."""
    told = paths(flux(), flux(num_layers=3))

    assert "pipeline.denoisers.module.config.num_layers" in told
    assert "pipeline.denoisers.module.structure.groups.transformer_blocks" in told
    assert "pipeline.denoisers.module.structure.groups.single_transformer_blocks" not in told


def test_config_that_leaves_no_trace_in_the_tensors(flux: Maker) -> None:
    """Rope axes change what is computed and no parameter."""
    assert paths(flux(), flux(axes_dims_rope=(8, 4, 4))) >= {
        "pipeline.denoisers.module.config.axes_dims_rope"
    }


def test_dtype(unet: Maker) -> None:
    """bfloat16 is another program than float32, also if only one layer is."""
    half = unet().to(torch.bfloat16)
    one_layer = unet()
    one_layer.conv_out.to(torch.bfloat16)

    assert "pipeline.denoisers.module.dtypes.bfloat16" in paths(unet(), half)
    assert "pipeline.denoisers.module.structure.groups.conv_out" in paths(unet(), one_layer)


def test_memory_format(unet: Maker) -> None:
    """A channels-last model has other strides, which torch's keys hold."""
    assert paths(unet(), unet().to(memory_format=torch.channels_last))


def test_family_of_the_pipeline(flux_pipe: Maker) -> None:
    """Two pipelines that share a denoiser class but not a family."""

    class OtherPipeline:
        def __init__(self, transformer: Any) -> None:
            self.transformer = transformer

    pipe = flux_pipe()

    assert paths(pipe, OtherPipeline(pipe.transformer)) == {"pipeline.family"}


def test_second_denoiser(flux_pipe: Maker, flux: Maker) -> None:
    """A pipeline of two denoisers is not the pipeline of one of them."""
    one, two = flux_pipe(), flux_pipe()
    two.transformer_2 = flux()

    assert any(path.startswith("pipeline.denoisers.transformer_2") for path in paths(one, two))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.nn.Conv2d(2, 2, 3), torch.nn.Conv2d(2, 2, 3, padding=1)),
        (torch.nn.LayerNorm(4), torch.nn.LayerNorm(4, eps=1e-6)),
        (torch.nn.Sequential(torch.nn.GELU()), torch.nn.Sequential(torch.nn.SiLU())),
        (torch.nn.Sequential(torch.nn.GELU()), torch.nn.Sequential(torch.nn.GELU(approximate="tanh"))),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)),
        (torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)),
        (torch.nn.Linear(2, 2), torch.nn.Bilinear(2, 2, 2)),
    ],
    ids=["padding", "eps", "activation", "approximation", "bias", "shape", "class"],
)
def test_plain_modules_that_differ_without_a_config(a: torch.nn.Module, b: torch.nn.Module) -> None:
    """A plain module is told by classes, plain attributes, names and shapes."""
    assert paths(a, b)


def test_order_of_layers() -> None:
    """The same layers in another order compute something else."""
    a = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2))
    b = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())

    assert paths(a, b)


def test_user_class_with_other_code() -> None:
    """Two classes of one name, as two releases of an engine have them."""

    def make(operator: str) -> torch.nn.Module:
        scope: dict[str, Any] = {"torch": torch, "__name__": "engine"}
        exec(
            f"class Net(torch.nn.Module):\n    def forward(self, x):\n        return x {operator} 2\n", scope
        )
        return scope["Net"]()  # type: ignore[no-any-return]

    assert fingerprint(make("+"), CPU) == fingerprint(make("+"), CPU)
    assert paths(make("+"), make("*"))


# --- quantisation ----------------------------------------------------------------------------------------------------


def test_dense_and_gguf(flux: Maker) -> None:
    """Quantised layers dequantise first."""
    told = paths(flux(), quantise(flux(), Quant.Q8_0))

    assert {"pipeline.denoisers.module.quantization", "toolchain.packages.gguf"} <= told


def test_one_layer_of_another_quant_type(flux: Maker) -> None:
    """Same types in the same numbers, two layers swapped: the difference says which."""
    mixed, other = (quantise(flux(), Quant.Q8_0, Quant.Q4_0) for _ in range(2))
    blocks = other.transformer_blocks  # type: ignore[union-attr]
    first, second = blocks[0].attn.to_q, blocks[0].attn.to_k
    assert first.weight.quant_type is not second.weight.quant_type
    blocks[0].attn.to_q, blocks[0].attn.to_k = second, first

    told = paths(mixed, other)

    stem = "pipeline.denoisers.module.quantization"
    assert f"{stem}.layers.transformer_blocks.*.attn.to_q.weight.Q8_0" in told
    assert not any(path.startswith(f"{stem}.types") for path in told)


def test_quant_types_of_one_byte_shape(flux: Maker) -> None:
    """IQ4_NL and Q4_0 take the same bytes: only the type tells them apart."""
    a, b = quantise(flux(), Quant.Q4_0), quantise(flux(), Quant.Q4_0)
    layer_of_gguf(b).weight.quant_type = Quant.IQ4_NL

    assert any("quantization.layers" in path for path in paths(a, b))


def test_gguf_compute_dtype(flux: Maker) -> None:
    """The dtype that a GGUF layer computes in is an attribute of the layer."""
    a, b = quantise(flux(), Quant.Q8_0), quantise(flux(), Quant.Q8_0)
    for part in b.modules():
        if isinstance(part, GGUFLinear):
            part.compute_dtype = torch.bfloat16

    assert paths(a, b)


def test_gguf_kernels(flux: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """diffusers can compute GGUF layers with downloaded CUDA kernels instead."""
    import diffusers.quantizers.gguf.utils as gguf_utils

    model = quantise(flux(), Quant.Q8_0)
    before = fingerprint(model, CPU)
    monkeypatch.setattr(gguf_utils, "ops", object())

    assert paths(before, model) == {"toolchain.gguf_kernels"}


# --- attention -------------------------------------------------------------------------------------------------------


def test_attention_processor(unet: Maker) -> None:
    """Another processor everywhere, or in one layer only; putting it back gives the first id again."""
    model = unet()
    before, own = fingerprint(model, CPU), dict(model.attn_processors)
    model.set_attn_processor(AttnProcessor())
    everywhere = fingerprint(model, CPU)
    model.set_attn_processor(dict(own))
    model.mid_block.attentions[0].transformer_blocks[0].attn1.set_processor(AttnProcessor())
    one_layer = fingerprint(model, CPU)

    assert len({before.id, everywhere.id, one_layer.id}) == 3
    assert all("attention.processors" in path for path in paths(before, one_layer))
    model.set_attn_processor(dict(own))
    assert fingerprint(model, CPU) == before


def test_custom_processor_by_its_source(unet: Maker) -> None:
    """A processor of the user is told by name and source, and by its plain settings."""

    def make(body: str, **fields: Any) -> Any:
        scope: dict[str, Any] = {"Base": AttnProcessor2_0, "__name__": "engine"}
        exec(f"class Fast(Base):\n    def __call__(self, *a, **k):\n        {body}\n", scope)
        made = scope["Fast"]()
        made.__dict__.update(fields)
        return made

    def with_processor(processor: Any) -> Any:
        model = unet()
        model.set_attn_processor(processor)
        return model

    same = [fingerprint(with_processor(make("return 1")), CPU) for _ in range(2)]

    assert same[0] == same[1]
    assert paths(same[0], with_processor(make("return 2")))
    assert paths(same[0], with_processor(make("return 1", scale=0.5)))
    assert paths(same[0], unet())


def test_attention_backend(flux: Maker) -> None:
    """diffusers' back end, set on a model: told for its layers, and undone by a reset."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    model, default = flux(), _AttentionBackendRegistry._active_backend
    before = fingerprint(model, CPU)
    try:
        model.set_attention_backend("_native_math")
        changed = fingerprint(model, CPU)
        unset = fingerprint(flux(), CPU)
        model.reset_attention_backend()
    finally:
        _AttentionBackendRegistry.set_active_backend(default)

    assert paths(before, changed) == {
        "pipeline.denoisers.module.attention.backends.native",
        "pipeline.denoisers.module.attention.backends._native_math",
    }
    # diffusers makes it the default of the process as well: a fresh model would compute with it.
    assert unset == changed
    assert fingerprint(model, CPU) == before


def test_patched_processor_class(flux: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that replaces a method of diffusers' own processor does not get diffusers' code."""
    before = fingerprint(flux(), CPU)
    scope: dict[str, Any] = {"__name__": "engine"}
    exec("def fast(self, attn, x, *a, **k):\n    return x\n", scope)
    monkeypatch.setattr(FluxAttnProcessor, "__call__", scope["fast"])

    assert paths(before, flux())


@pytest.mark.parametrize("family", ["unet", "flux"])
def test_fused_projections(family: str, request: pytest.FixtureRequest) -> None:
    """One matmul for query, key and value is another program; on meta as well."""
    make = request.getfixturevalue(family)
    plain, fused = make(), make()
    fused.fuse_qkv_projections()

    assert "pipeline.denoisers.module.fused_projections" in paths(plain, fused)


def test_unfusing_returns_to_the_first_id(flux: Maker) -> None:
    """What was fused and taken apart again compiles to the same code."""
    model = flux()
    before = fingerprint(model, CPU)
    model.fuse_qkv_projections()
    model.unfuse_qkv_projections()

    assert fingerprint(model, CPU) == before


# --- what engines do to models ---------------------------------------------------------------------------------------


def test_freeu(unet: Maker) -> None:
    """FreeU sets plain numbers on blocks; disabling it undoes that."""
    model = unet()
    before = fingerprint(model, CPU)
    model.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4)
    weak = fingerprint(model, CPU)
    model.enable_freeu(s1=0.9, s2=0.2, b1=1.3, b2=1.4)

    assert paths(before, weak)
    assert paths(weak, model)
    model.disable_freeu()
    assert fingerprint(model, CPU) == before


def test_step_cache_hooks(flux: Maker) -> None:
    """A step cache runs around the blocks; its threshold is part of what it does."""
    from diffusers import FirstBlockCacheConfig

    model = flux()
    before = fingerprint(model, CPU)
    model.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    cached = fingerprint(model, CPU)

    assert any("hooks" in path for path in paths(before, cached))
    model.disable_cache()
    assert fingerprint(model, CPU) == before


def test_forward_hooks_and_patches(flux: Maker) -> None:
    """A hook, or a forward replaced on one block, is told with where it is."""
    model = flux()
    before = fingerprint(model, CPU)
    handle = model.transformer_blocks[1].register_forward_pre_hook(lambda module, args: args)

    assert paths(before, model) == {"pipeline.denoisers.module.hooks.transformer_blocks.*"}
    handle.remove()
    assert fingerprint(model, CPU) == before
    model.transformer_blocks[0].forward = lambda *args, **kwargs: args
    assert paths(before, model) == {"pipeline.denoisers.module.hooks.transformer_blocks.*"}


def test_patched_library_class(flux: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines replace ``forward`` on diffusers' classes; the version then tells nothing."""
    model = flux()
    before = fingerprint(model, CPU)
    block = type(model.transformer_blocks[0])
    monkeypatch.setattr(block, "forward", lambda self, *args, **kwargs: args)

    assert paths(before, model) >= {"pipeline.denoisers.module.structure.groups.transformer_blocks"}


def test_dropout_in_training_mode(flux: Maker) -> None:
    """Training mode counts where it computes something else."""
    a, b = (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1)) for _ in range(2))
    a.eval()

    assert "pipeline.denoisers.module.training" in paths(a, b)


# --- plan and toolchain ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"dynamic": True}, "plan.dynamic"),
        ({"dynamic": None}, "plan.dynamic"),
        ({"mode": "max-autotune-no-cudagraphs"}, "plan.mode"),
        ({"options": {"shape_padding": True}}, "plan.options.shape_padding"),
        ({"scope": "blocks"}, "plan.scope"),
        ({"fullgraph": True}, "plan.fullgraph"),
        ({"fuse_qkv": True}, "plan.fuse_qkv"),
    ],
)
def test_plan(changed: dict[str, Any], path: str) -> None:
    """Static and dynamic, mode, options, scope: each is named."""
    module = torch.nn.Linear(2, 2)

    assert path in paths(module, module, CPU, Plan("cpu", **changed))


def test_values_of_options() -> None:
    """One option, two values; 1 is not true."""
    module = torch.nn.Linear(2, 2)
    plans = [Plan("cpu", options={"max_fusion_size": value}) for value in (64, 32, True, 1)]

    assert len({fingerprint(module, plan).id for plan in plans}) == 4
