"""What a session keeps alive, and who owns a denoiser: memory, copies, attaching twice, threads."""

from __future__ import annotations

import pytest

from tests.functional.conftest import Run

pytestmark = pytest.mark.slow


def test_a_dropped_module_is_freed_and_the_environment_put_back(process: Run) -> None:
    """An engine that forgets to close does not leak its weights, although Dynamo keeps compiled code for ever."""
    told = process(
        """
        import gc, weakref

        def start():
            module = Product()
            session = cachekit.attach(module, dir=store)
            call(module, 4, 8)
            session.save(wait=True)
            return weakref.ref(module), weakref.ref(session)

        before = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        module, session = start()
        gc.collect()
        tell(module=module() is None, session=session() is None,
             restored=os.environ["TORCHINDUCTOR_CACHE_DIR"] == before)
        """
    )

    assert told["module"]
    assert told["session"]
    assert told["restored"]


def test_a_closed_session_lets_go_of_its_module(process: Run) -> None:
    """A report that is kept after close does not keep the weights."""
    told = process(
        """
        import gc, weakref
        module = Product()
        session = cachekit.attach(module, dir=store)
        call(module, 4, 8)
        session.close()
        gone = weakref.ref(module)
        del module
        gc.collect()
        tell(freed=gone() is None, state=session.report().state)
        """
    )

    assert told["freed"]
    assert told["state"] == "closed"


def test_attaching_again_closes_the_session_before(process: Run) -> None:
    """The second session compiles and records alone, and closing the first one later changes nothing."""
    told = process(
        """
        module = Product()
        first = cachekit.attach(module, dir=store)
        call(module, 4, 8)
        second = cachekit.attach(module, dir=store)
        state = first.state
        call(module, 6, 8)
        first.close()
        call(module, 7, 8)
        report = second.report().to_json()
        second.close()
        tell(state=state, report=report, plain=module._compiled_call_impl is None)
        """
    )

    assert told["state"] == "closed"
    assert told["report"]["misses"]["inductor"] == 2
    assert told["plain"]


def test_two_sessions_in_two_threads_do_not_mix(process: Run) -> None:
    """Two models that compile at the same time in two threads leave two bundles, each complete on its own."""
    told = process(
        """
        import threading
        models = [Product(), OtherProduct()]
        sessions = [cachekit.attach(m, dir=store) for m in models]
        begin = threading.Barrier(2)
        failures = []

        def work(module):
            try:
                begin.wait()
                for rows in (4, 6, 7):
                    call(module, rows, 8)
            except BaseException as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=work, args=(m,)) for m in models]
        for t in threads: t.start()
        for t in threads: t.join()
        reports = [s.report().to_json() for s in sessions]
        for s in sessions: s.close()
        tell(failures=failures, misses=[r["misses"]["inductor"] for r in reports], states=[r["state"] for r in reports])
        """
    )
    assert told["failures"] == []
    assert told["misses"] == [3, 3]
    assert "disabled" not in told["states"]

    replayed = process(
        """
        reports = []
        for module in (Product(), OtherProduct()):
            with cachekit.attach(module, dir=store, mode="strict") as session:
                for rows in (4, 6, 7):
                    call(module, rows, 8)
                reports.append(session.report().to_json())
        tell(installed=[r["installed"]["inductor"] for r in reports])
        """
    )
    assert replayed["installed"] == [3, 3]


def test_copies_of_an_attached_module_are_plain_modules(process: Run) -> None:
    """deepcopy and pickle give a module that runs by itself, eagerly, and equals the original."""
    told = process(
        """
        import copy, pickle
        module = torch.nn.Sequential(torch.nn.Linear(8, 8))
        session = cachekit.attach(module, dir=store)
        y = call(module, 4, 8)
        copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
        tell(equal=[torch.allclose(call(c, 4, 8), y) for c in copies],
             plain=[c._compiled_call_impl is None for c in copies])
        """
    )

    assert told["equal"] == [True, True]
    assert told["plain"] == [True, True]


def test_the_recompile_limit_holds_in_every_thread(process: Run) -> None:
    """Ten sizes compile in a thread that did not attach, although torch's own limit there is eight."""
    told = process(
        """
        import threading
        from torch._dynamo.utils import counters
        module = Product()
        session = cachekit.attach(module, plan=cachekit.Plan("cpu", dynamic=False, fullgraph=True), dir=store)
        failures = []

        def work():
            try:
                for rows in range(2, 12):
                    call(module, rows, 8)
            except BaseException as error:
                failures.append(repr(error)[:300])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        tell(failures=failures, graphs=counters["stats"]["unique_graphs"])
        """
    )

    assert told["failures"] == []
    assert told["graphs"] == 10


def test_a_kernel_compiled_before_attach_is_saved(process: Run) -> None:
    """An engine that compiled the module itself before attach leaves a bundle that starts warm, kernels included."""
    process(
        """
        module = Kernel()
        module.compile(dynamic=False)
        call(module, 4, 8)
        session = cachekit.attach(module, dir=store)
        call(module, 4, 8)
        session.close()
        tell(reasons=session.report().reasons)
        """
    )

    told = process(
        """
        module = Kernel()
        with cachekit.attach(module, dir=store) as session:
            call(module, 4, 8)
            tell(report=session.report().to_json())
        """
    )

    assert told["report"]["misses"] == {}
    assert told["report"]["hits"]["kernel"] == 1
