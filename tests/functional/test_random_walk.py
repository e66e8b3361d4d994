"""Twenty starts in a row, each running something else: what was ever run stays warm.

Every start is a process forked from one that has imported torch and compiled nothing, which is what a fresh interpreter
is after its imports, at a fraction of the cost.
"""

from __future__ import annotations

import pytest

from tests.functional.conftest import Run

pytestmark = pytest.mark.slow

WALK = """
    import gc, random
    import torch._dynamo, torch._inductor.compile_fx, torch._functorch._aot_autograd.autograd_cache
    import cachekit.manifest, cachekit.store.publish
    from torch._dynamo.utils import counters

    nets = {"Product": Product, "OtherProduct": OtherProduct}
    plan = cachekit.Plan("cpu", dynamic=False)
    dice = random.Random(seed)
    cachekit.attach(Product(), dir=store, mode="off").close()  # imports what attaching imports
    gc.freeze()

    def in_a_process(work, *args):
        '''What ``work`` returns, in a forked process.'''
        assert not counters["stats"]
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            with os.fdopen(write, "w") as told:
                json.dump(work(*args), told)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as told:
            result = json.loads(told.read() or '"died"')
        os.waitpid(pid, 0)
        return result

    def start(mode, wanted):
        '''One start: each net with its shapes; reports and what was compiled, by net.'''
        told = {}
        sessions = {}
        for name in wanted:
            module = nets[name]()
            sessions[name] = module, cachekit.attach(module, dir=store, mode=mode, plan=plan)
        for name, sizes in wanted.items():
            module, session = sessions[name]
            for rows in sizes:
                call(module, rows, 8)
                session.register_shape(rows, 8, 1)
        for name, (module, session) in sessions.items():
            session.close()
            report = session.report()
            told[name] = {"misses": dict(report.misses), "hits": dict(report.hits), "shapes": list(report.shapes),
                          "state": report.state, "reasons": list(report.reasons), "generation": report.generation}
        return told

    union = {name: set() for name in walkers}
    steps = []
    for number in range(starts):
        chosen = {name: dice.sample(shapes, dice.randint(1, len(shapes))) for name in walkers}
        new = {name: sorted(set(chosen[name]) - union[name]) for name in walkers}
        ran = in_a_process(start, "auto", chosen)
        for name in walkers:
            union[name] |= set(chosen[name])
        replayed = in_a_process(start, "strict", {name: sorted(union[name]) for name in walkers})
        steps.append({"new": new, "union": {n: sorted(u) for n, u in union.items()}, "ran": ran, "replayed": replayed})
    tell(steps=steps)
"""


@pytest.mark.parametrize(
    ("walkers", "starts", "seed"),
    [(["Product"], 20, 3), (["Product", "OtherProduct"], 4, 5)],
    ids=["one", "two"],
)
def test_whatever_was_run_once_is_warm_from_then_on(
    process: Run, walkers: list[str], starts: int, seed: int
) -> None:
    """Each start runs a random subset of five shapes and saves; after each, all that ever ran replays without a miss.

    A start compiles what nobody ran before, hits the rest, and the bundle's shapes are the union so far, whichever
    part of it a start used. Two nets of which one's class inherits from the other's do not get into each other's way.
    """
    steps = process(WALK, walkers=walkers, starts=starts, seed=seed, shapes=[2, 3, 4, 5, 6])["steps"]

    for step in steps:
        for name in walkers:
            ran, replayed = step["ran"][name], step["replayed"][name]
            labels = [f"{rows}x8x1" for rows in step["union"][name]]
            assert ran["misses"].get("inductor", 0) == len(step["new"][name]), step
            assert ran["shapes"] == labels, step
            assert replayed["misses"] == {}, step
            assert replayed["hits"]["inductor"] == len(labels), step
            assert replayed["shapes"] == labels, step
            assert replayed["generation"] == ran["generation"], step
    assert len(steps) == starts
    assert all(len(steps[-1]["union"][name]) == 5 for name in walkers)
