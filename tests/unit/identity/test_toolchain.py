"""A captured toolchain: complete, portable, and usable where there is no GPU."""

from __future__ import annotations

import getpass
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from cachekit.bundle import canonical
from cachekit.errors import ConfigurationError, CorruptError, NewerSchemaError
from cachekit.identity import Fingerprint, Plan, Toolchain, fingerprint

H200 = {
    "type": "cuda",
    "ordinal": 0,
    "name": "NVIDIA H200",
    "capability": "9.0",
    "multi_processors": 132,
    "gcn_arch": None,
}
MODULE = torch.nn.Linear(2, 2)


def with_gpus(*gpus: dict[str, Any], current: int | None = 0, **changes: Any) -> Toolchain:
    """This process's toolchain as it would be on a machine with these GPUs."""
    return Toolchain.of({**Toolchain.current().data, "gpus": list(gpus), "current_gpu": current, **changes})


def differing(mine: Fingerprint, theirs: Fingerprint) -> list[str]:
    """Paths that differ."""
    return [each.path for each in mine.diff(theirs)]


def test_capturing_twice_gives_one_toolchain() -> None:
    """Nothing in it depends on the moment."""
    assert Toolchain.current() == Toolchain.current()


def test_json_round_trip_gives_the_same_fingerprint() -> None:
    """What ``cachekit toolchain --json`` prints is enough to compute the ids of this machine."""
    text = Toolchain.current().to_json()
    pretty = json.dumps(json.loads(text), indent=2)

    assert Toolchain.from_json(pretty) == Toolchain.current()
    assert fingerprint(MODULE, Plan("cpu"), Toolchain.from_json(text)) == fingerprint(MODULE, Plan("cpu"))


def test_it_tells_neither_user_nor_host_nor_folders() -> None:
    """Toolchains are published with every bundle."""
    text = Toolchain.current().to_json()
    private = {
        getpass.getuser(),
        socket.gethostname(),
        os.getcwd(),
        os.path.expanduser("~"),
        os.path.dirname(torch.__file__),
    }

    assert [each for each in private if len(each) > 4 and json.dumps(each)[1:-1] in text] == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{}", CorruptError),
        ("[]", CorruptError),
        ("nonsense", CorruptError),
        ('{"schema": "x"}', CorruptError),
        ('{"schema": 99}', NewerSchemaError),
    ],
)
def test_what_is_not_a_toolchain(text: str, error: type[Exception]) -> None:
    """A wrong file is a named error."""
    with pytest.raises(error):
        Toolchain.from_json(text)


def test_planner_without_a_gpu() -> None:
    """The plan is for a GPU that this process does not have; the toolchain knows it."""
    with torch.device("meta"):
        planned = torch.nn.Linear(2, 2)
    found = fingerprint(planned, Plan("cuda:0"), with_gpus(H200))

    assert found.components["toolchain"]["gpu"] == H200
    assert found == fingerprint(MODULE, Plan("cuda:0"), with_gpus(H200))


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"name": "NVIDIA H200 NVL"}, "name"),
        ({"capability": "10.0"}, "capability"),
        ({"multi_processors": 60}, "multi_processors"),
        ({"gcn_arch": "gfx942"}, "gcn_arch"),
    ],
)
def test_gpus_are_told_apart(changed: dict[str, Any], path: str) -> None:
    """Name, capability, size: a slice of a GPU is not the GPU."""
    mine, theirs = (
        fingerprint(MODULE, Plan("cuda:0"), with_gpus({**H200, **extra})) for extra in ({}, changed)
    )

    assert differing(mine, theirs) == [f"toolchain.gpu.{path}"]


def test_ordinal_is_told_apart() -> None:
    """torch compiles the device's number into the code."""
    both = with_gpus(H200, {**H200, "ordinal": 1})
    mine, theirs = (fingerprint(MODULE, Plan(device), both) for device in ("cuda:0", "cuda:1"))

    assert differing(mine, theirs) == ["plan.device", "toolchain.gpu.ordinal"]


def test_other_gpus_of_the_machine_do_not_count() -> None:
    """A node with one GPU and a node with eight share what was compiled for the first."""
    alone, among = with_gpus(H200), with_gpus(H200, *({**H200, "ordinal": n} for n in range(1, 8)), current=3)

    assert fingerprint(MODULE, Plan("cuda:0"), alone) == fingerprint(MODULE, Plan("cuda:0"), among)


def test_the_cpu_does_not_count_for_a_gpu_plan() -> None:
    """C++ in a GPU pipeline is held by requirements, not by the fingerprint."""
    cpu = {**Toolchain.current().data["cpu"], "vector_isa": "sve256", "threads": 96, "arch": "aarch64"}
    mine, theirs = with_gpus(H200), with_gpus(H200, cpu=cpu)

    assert fingerprint(MODULE, Plan("cuda:0"), mine) == fingerprint(MODULE, Plan("cuda:0"), theirs)
    assert mine.requirements() != theirs.requirements()
    assert theirs.requirements()["threads"] == "96"


def test_the_gpu_beside_a_cpu_plan() -> None:
    """torch's system key holds the name of the GPU for CPU graphs too: such bundles would never hit."""
    plain, beside = fingerprint(MODULE, Plan("cpu")), fingerprint(MODULE, Plan("cpu"), with_gpus(H200))

    assert differing(plain, beside) == ["toolchain.gpu"] or torch.cuda.is_available()
    assert beside.components["toolchain"]["gpu"] == {"name": "NVIDIA H200"}


@pytest.mark.parametrize("device", ["cuda:1", "xpu:0"])
def test_a_gpu_that_the_toolchain_lacks(device: str) -> None:
    """The error says which GPUs there are and how to capture another machine's."""
    with pytest.raises(ConfigurationError, match=r"the toolchain has cuda:0: .*cachekit toolchain --json"):
        fingerprint(MODULE, Plan(device), with_gpus(H200))


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("torch", {"version": "2.14.1", "git": "abc", "cuda": "13.0", "hip": None, "xpu": None}),
        ("triton", "3.6.0"),
        ("python", "cpython-3.12"),
        ("platform", "darwin"),
    ],
)
def test_what_is_installed_is_told_apart(part: str, changed: Any) -> None:
    """torch, Triton, Python's minor, operating system."""
    mine = fingerprint(MODULE, Plan("cpu"))
    theirs = fingerprint(MODULE, Plan("cpu"), Toolchain.of({**Toolchain.current().data, part: changed}))

    name = {"platform": "system"}.get(part, part)
    assert {path.split(".")[1] for path in differing(mine, theirs)} == {name}


def test_packages_count_where_the_pipeline_depends_on_them(flux: Any) -> None:
    """An upgrade of diffusers touches diffusers' models only, and one of peft none of these."""
    data = Toolchain.current().data
    upgraded = Toolchain.of({**data, "packages": {**data["packages"], "diffusers": "9.0", "peft": "9.0"}})
    plan = Plan("cpu")

    assert fingerprint(MODULE, plan) == fingerprint(MODULE, plan, upgraded)
    assert differing(fingerprint(flux(), plan), fingerprint(flux(), plan, upgraded)) == [
        "toolchain.packages.diffusers"
    ]


def test_attention_backend_is_that_of_the_planned_machine(flux: Any) -> None:
    """A planner whose own default is another back end still plans for the toolchain's."""
    data = Toolchain.current().data
    flash = Toolchain.of({**data, "diffusers": {**data["diffusers"], "attention_backend": "_native_flash"}})
    attention = fingerprint(flux(), Plan("cpu"), flash).components["pipeline"]["denoisers"]["module"][
        "attention"
    ]

    assert attention["backends"] == {"_native_flash": 5}


def test_back_ends_bring_their_packages(flux: Any) -> None:
    """Attention computed by another package changes with that package's version."""
    data = Toolchain.current().data
    sage = {**data, "diffusers": {**data["diffusers"], "attention_backend": "sage"}}
    found = [
        fingerprint(
            flux(), Plan("cpu"), Toolchain.of({**sage, "packages": {**data["packages"], "sageattention": v}})
        )
        for v in ("1.0", "2.0")
    ]

    assert differing(*found) == ["toolchain.packages.sageattention"]


def test_it_is_a_value() -> None:
    """Equal captures are equal and hashable, copies cannot change it, and it prints without paths."""
    captured = Toolchain.current()
    captured.data["gpus"].append("x")

    assert captured == Toolchain.of(captured.data)
    assert len({captured, Toolchain.current()}) == 1
    assert captured.canonical == canonical.dumps(captured.data)
    assert repr(captured).startswith("<Toolchain torch ")


@pytest.mark.gpu
def test_this_gpu() -> None:
    """On a machine with a GPU: captured, told by ordinal, and the same from JSON on meta."""
    module, plan = torch.nn.Linear(2, 2, device="cuda"), Plan("cuda")
    gpu = fingerprint(module, plan).components["toolchain"]["gpu"]

    assert gpu["name"] == torch.cuda.get_device_name()
    assert gpu["multi_processors"] > 0
    planned = fingerprint(module.to("meta"), plan, Toolchain.from_json(Toolchain.current().to_json()))
    assert planned.components["toolchain"]["gpu"] == gpu


def test_a_real_gpu_machine_planned_for_without_a_gpu(flux: Any) -> None:
    """The toolchain of an H200 with torch 2.11, as ``cachekit toolchain --json`` printed it there."""
    captured = Toolchain.from_json((Path(__file__).parent / "h200-torch-2.11.json").read_text())
    with torch.device("meta"):
        planned = flux()
    found = fingerprint(planned, Plan.for_pipeline(planned, device="cuda:0"), captured)
    components = found.components["toolchain"]

    assert (components["torch"]["version"], components["triton"]) == ("2.11.0+cu130", "3.6.0")
    assert components["gpu"]["multi_processors"] == 132
    assert components["packages"] == {"diffusers": "0.42.1"}
    assert components["cpu"] is None
    assert captured.requirements()["vector_isa"] == "amx_tile"
    assert found == fingerprint(flux(), Plan.for_pipeline(planned, device="cuda:0"), captured)
