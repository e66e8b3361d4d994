"""Threads: one session used from several, sessions that come and go beside one that generates, and no half answers.

Everything runs with a thread switch after every few instructions, which is where races show.
"""

from __future__ import annotations

import pytest

from tests.functional.conftest import Run

pytestmark = pytest.mark.slow

THREADS = """
    import threading
    sys.setswitchinterval(1e-6)
    plan = cachekit.Plan("cpu", dynamic=False)
    failures = []

    def together(*works):
        '''Run each on a thread of its own, from one moment on.'''
        begin = threading.Barrier(len(works))

        def run(work):
            try:
                begin.wait(100)
                work()
            except BaseException as error:
                import traceback
                failures.append(traceback.format_exc()[-1500:])

        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for t in threads: t.start()
        for t in threads: t.join()
"""

ONE_SESSION = (
    THREADS
    + """
    module = Product()
    session = cachekit.attach(module, dir=store, plan=plan)
    done = threading.Event()
    states = set()

    def generate(own, shared):
        for _ in range(3):
            for rows in (own, shared):
                call(module, rows, 8)
                session.register_shape(rows, 8, 1)

    def look():
        while not done.is_set():
            states.add(session.state)
            session.report(), str(session), session.fingerprint

    def save():
        while not done.is_set():
            session.save(wait=True)

    beside = [threading.Thread(target=work) for work in (look, save)]
    for t in beside: t.start()
    together(*(lambda own=own: generate(own, 7) for own in (2, 3, 4)))
    done.set()
    for t in beside: t.join()
    session.close()
    report = session.report().to_json()
    bundle = session.profile.bundle
    present = {e.identity.id for e in bundle.entries}
    units = [{"needs": len(u.needs), "whole": set(u.needs) <= present,
              "rows": json.loads(u.signature)["args"][0]["t"][0]} for u in bundle.coverage.units]
    rows = {row.shape.label: len(row.unit_ids) for row in bundle.coverage.shapes}
    tell(failures=failures, states=sorted(states), report=report, units=units, rows=rows)
"""
)

REPLAY = """
    plan = cachekit.Plan("cpu", dynamic=False)
    module = Product()
    with cachekit.attach(module, dir=store, mode="strict", plan=plan) as session:
        for rows in sizes:
            call(module, rows, 8)
        tell(report=session.report().to_json())
"""


def test_one_session_serves_several_threads(process: Run) -> None:
    """Three threads compile through one session, one shape all of them, while others save and look.

    Each compile is counted once, each unit needs exactly what its own call made, and each label names what its own
    thread ran.
    """
    told = process(ONE_SESSION)

    assert told["failures"] == []
    assert "disabled" not in told["states"]
    assert told["report"]["misses"]["inductor"] == 4
    assert sorted(unit["rows"] for unit in told["units"]) == [2, 3, 4, 7]
    assert all(unit["whole"] and unit["needs"] == 2 for unit in told["units"])
    assert told["rows"] == {f"{rows}x8x1": 1 for rows in (2, 3, 4, 7)}

    replayed = process(REPLAY, sizes=[2, 3, 4, 7])["report"]
    assert replayed["misses"] == {}
    assert replayed["hits"]["inductor"] == 4


COME_AND_GO = (
    THREADS
    + """
    theirs = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    busy, done = Product(), threading.Event()
    session = cachekit.attach(busy, dir=store, plan=plan)
    call(busy, 2, 8)
    results = []

    def generate():
        for rows in (3, 4, 5):
            results.append(call(busy, rows, 8).sum().item())
        while not done.is_set():
            results.append(call(busy, 2, 8).sum().item())

    def come_and_go():
        for _ in range(4):
            other = OtherProduct()
            with cachekit.attach(other, dir=store, plan=plan):
                call(other, 2, 8)

    def work():
        come_and_go()
        done.set()

    together(generate, work)
    closing = Product()
    second = cachekit.attach(closing, dir=store + "-closing", plan=plan)
    begun = threading.Event()

    def keep_generating():
        for rows in range(2, 8):
            results.append(call(closing, rows, 8).sum().item() / rows * 2)
            begun.set()

    def close():
        begun.wait(100)
        second.close()

    together(keep_generating, close, close)
    session.close()
    again = cachekit.attach(Product(), dir=store + "-closing", plan=plan, mode="readonly")
    tell(failures=failures, results=sorted(set(results)), report=session.report().to_json(), second=second.state,
         kept=len(again.report().installed), plain=closing._compiled_call_impl is None,
         inside=os.environ["TORCHINDUCTOR_CACHE_DIR"] != theirs, closed=again.close(),
         restored=os.environ["TORCHINDUCTOR_CACHE_DIR"] == theirs)
"""
)


def test_sessions_come_and_go_beside_one_that_generates(process: Run) -> None:
    """Attaching and closing on one thread leaves what another thread generates alone.

    A session that is closed by two threads while a third one generates through it lets it finish: the results are
    right, what was compiled until then is kept, and the module is plain again.
    """
    told = process(COME_AND_GO)

    assert told["failures"] == []
    assert told["results"] == [64.0, 96.0, 128.0, 160.0]
    assert told["report"]["misses"]["inductor"] == 4
    assert told["second"] == "closed"
    assert told["kept"]
    assert told["plain"]
    assert told["inside"]
    assert told["restored"]
