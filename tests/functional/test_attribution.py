"""Sessions never mix: two models, two instances of one class, and folders that belong to somebody else."""

from __future__ import annotations

from pathlib import Path

from tests.functional.conftest import Run

REPLAY = """
    module = Model(size) if size else Model()
    session = cachekit.attach(module, dir=store)
    call(module, rows, size or 8)
    report = session.report().to_json()
    session.close()
    tell(report=report)
"""


def replay(process: Run, model: str, rows: int, size: int = 0, **values: object) -> dict:  # type: ignore[type-arg]
    """Start one model alone in a new process and return its report."""
    return process(f"Model = {model}\n" + REPLAY.replace("\n    ", "\n"), rows=rows, size=size, **values)[
        "report"
    ]


def test_two_models_that_compile_alternately_do_not_mix(process: Run) -> None:
    """Each bundle holds its own model's artifacts and is complete when that model starts alone."""
    told = process("""
        one, two = Product(), OtherProduct()
        first, second = cachekit.attach(one, dir=store), cachekit.attach(two, dir=store)
        for rows in (4, 6):
            call(one, rows, 8)
            call(two, rows, 8)
        first.close()
        second.close()
        tell(one=first.fingerprint.id, two=second.fingerprint.id)
    """)
    assert told["one"] != told["two"]

    for model in ("Product", "OtherProduct"):
        for rows in (4, 6):
            report = replay(process, model, rows)
            assert report["misses"] == {}
            assert report["installed"] == {"inductor": 2, "aot_autograd": 2}


def test_two_instances_of_one_class_each_get_a_complete_bundle(process: Run) -> None:
    """The second instance, which Dynamo's memory would have served, is recorded as fully as the first."""
    process("""
        one, two = Product(8), Product(8)
        two.weight = torch.nn.Parameter(torch.full((8, 8), 0.25, dtype=torch.float32))
        two.register_buffer("extra", torch.zeros(3))
        first, second = cachekit.attach(one, dir=store), cachekit.attach(two, dir=store)
        call(one, 4, 8)
        call(two, 4, 8)
        reports = [s.report().to_json() for s in (first, second)]
        first.close()
        second.close()
        tell(reports=reports)
    """)

    told = process("""
        one = Product(8)
        one.register_buffer("extra", torch.zeros(3))
        session = cachekit.attach(one, dir=store)
        call(one, 4, 8)
        tell(report=session.report().to_json())
    """)

    assert told["report"]["misses"] == {}
    assert told["report"]["hits"]["inductor"] == 1


def test_a_cache_folder_of_somebody_else_changes_nothing(process: Run, tmp_path: Path) -> None:
    """With a warm TORCHINDUCTOR_CACHE_DIR set by the engine the bundle is complete, and the variable is put back."""
    script = """
        module = Product()
        if warm:
            module.compile(dynamic=False)
            call(module, 4, 8)
            torch._dynamo.reset()
            module = Product()
        session = cachekit.attach(module, dir=store)
        during = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        call(module, 4, 8)
        session.close()
        tell(during=during, after=os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
    """
    theirs = str(tmp_path / "theirs")

    told = process(script, warm=True, environment={"TORCHINDUCTOR_CACHE_DIR": theirs})

    assert told["after"] == theirs
    assert told["during"] != theirs
    assert replay(process, "Product", 4)["misses"] == {}


def test_a_session_leaves_nothing_behind(process: Run) -> None:
    """After close the environment, the module and torch's own functions are as they were before attach."""
    told = process("""
        import torch._inductor.codecache as cache
        from torch._inductor.cpu_vec_isa import VecISA
        from torch.compiler._cache import CacheArtifactManager

        def state(module):
            return [
                os.environ.get("TORCHINDUCTOR_CACHE_DIR"), os.environ.get("TRITON_CACHE_DIR"),
                module._compiled_call_impl, cache.write, cache._precompile_header, VecISA.check_build,
                CacheArtifactManager.__dict__["record_artifact"], torch._dynamo.config.recompile_limit,
            ]

        module = Product()
        before = state(module)
        session = cachekit.attach(module, dir=store)
        call(module, 4, 8)
        changed = sum(a is not b and a != b for a, b in zip(before, state(module)))
        session.close()
        tell(changed=changed, restored=[a is b or a == b for a, b in zip(before, state(module))])
    """)

    assert told["changed"] == 8
    assert all(told["restored"])
