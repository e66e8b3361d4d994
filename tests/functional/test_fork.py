"""Forks: a session belongs to its process; in a child it does nothing, holds nothing up and takes nothing away."""

from __future__ import annotations

import pytest

from tests.functional.conftest import Run

pytestmark = pytest.mark.slow

FORK = """
    import multiprocessing, signal, threading

    plan = cachekit.Plan("cpu", dynamic=False)
    signal.alarm(200)  # a child that waits for a lock of its parent's would wait for ever

    def forked(work, leave):
        '''What ``work`` returns in a forked child, which leaves by ``leave``, and its exit status.'''
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            try:
                result = work()
            except BaseException as error:
                result = repr(error)
            os.write(write, json.dumps(result).encode())
            os.close(write)
            leave()
        os.close(write)
        with os.fdopen(read) as told:
            result = json.loads(told.read() or '"died"')
        return result, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

AFTER_ATTACH = (
    FORK
    + """
    module = Product()
    session = cachekit.attach(module, dir=store, plan=plan, save="never")
    folder = os.path.dirname(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    call(module, 2, 8)

    # A save that is in the middle of it, and another thread within our locks, at the moment of the fork.
    kept = session._profiles.library.store
    inside, go = threading.Event(), threading.Event()
    real = kept.write_generation

    def slow(*args):
        inside.set()
        assert go.wait(100)
        return real(*args)

    kept.write_generation = slow
    session.save()
    assert inside.wait(100)
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with session.profile._lock, session._lock, session._generations._lock, session._profiles._lock:
            held.set()
            assert let_go.wait(100)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(100)

    def inert():
        session.generation_started()
        answers = [session.register_shape(2, 8, 1), session.save(wait=True)]
        call(module, 3, 8)
        session.generation_finished()
        shapes = session.report().shapes
        session.close()
        return {"answers": answers, "shapes": list(shapes), "state": session.state, "live": session.live(),
                "here": os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(folder)}

    def its_own():
        own = cachekit.attach(module, dir=store + "-child", plan=plan)
        mine = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        call(module, 5, 8)
        own.register_shape(5, 8, 1)
        own.close()
        report = own.report()
        return {"own folder": not mine.startswith(folder), "misses": report.misses["inductor"], "state": own.state,
                "saved": list(report.saved_generations), "reasons": list(report.reasons)}

    def forgotten():
        global left
        left = cachekit.attach(Product(), dir=store + "-forgotten", plan=plan)
        left_module = Product()
        left = cachekit.attach(left_module, dir=store + "-forgotten", plan=plan)
        left.kept = left_module
        call(left_module, 6, 8)

    told = {
        "_exit": forked(inert, lambda: os._exit(0)),
        "normal exit": forked(inert, sys.exit),
        "own": forked(its_own, sys.exit),
        "forgotten": forked(forgotten, sys.exit),
    }
    queue = multiprocessing.get_context("fork").SimpleQueue()
    worker = multiprocessing.get_context("fork").Process(target=lambda: queue.put(inert()))
    worker.start()
    told["worker"] = queue.get(), worker.join() or worker.exitcode
    queue = multiprocessing.get_context("fork").SimpleQueue()
    worker = multiprocessing.get_context("fork").Process(target=lambda: queue.put(forgotten()))
    worker.start()
    told["forgetful worker"] = queue.get(), worker.join() or worker.exitcode

    alive = os.path.isdir(folder)
    let_go.set(), go.set(), holder.join()
    saved = session.save(wait=True)
    call(module, 4, 8)
    session.save(wait=True)
    report = session.report().to_json()
    session.close()
    heads = {name: len(list(__import__("pathlib").Path(store + name).rglob("head.json")))
             for name in ("", "-child", "-forgotten")}
    tell(told=told, alive=alive, saved=saved, report=report, heads=heads)
"""
)


def test_a_fork_in_the_middle_of_a_save_disturbs_neither_side(process: Run) -> None:
    """The child's session does nothing and waits for no lock of its parent's, whichever way the child ends.

    A child may attach for itself, and what it forgets to close is saved when it exits, as in any process. The parent's
    save goes on, its private folder stays, and its later compiles are recorded as if there had been no fork.
    """
    result = process(AFTER_ATTACH)
    told = result["told"]

    for name in ("_exit", "normal exit", "worker"):
        answer, status = told[name]
        assert status == 0, told
        assert answer["answers"] == [False, False]
        assert not answer["live"]
        assert answer["here"]
    own, status = told["own"]
    assert status == 0
    assert own == {
        "own folder": True,
        "misses": 1,
        "state": "closed",
        "saved": [1],
        "reasons": own["reasons"],
    }
    assert not [reason for reason in own["reasons"] if reason.startswith(("not saved", "manifest not"))]
    assert told["forgotten"] == [None, 0]
    assert told["forgetful worker"] == [None, 0]
    assert result["alive"]
    assert result["saved"]
    assert result["report"]["misses"]["inductor"] == 2
    assert result["report"]["saved_generations"] == [1, 2]
    assert result["heads"] == {"": 1, "-child": 1, "-forgotten": 1}


BEFORE_ATTACH = (
    FORK
    + """
    module = Product()

    def start():
        with cachekit.attach(module, dir=store, plan=plan) as session:
            call(module, 2, 8)
        return session.report().to_json()

    first, status = forked(start, sys.exit)
    assert status == 0, first
    second, status = forked(start, lambda: os._exit(0))
    assert status == 0, second
    third = start()
    folders = os.listdir(os.path.join(store, "process"))
    tell(first=first, second=second, third=third, folders=folders, pid=os.getpid())
"""
)


def test_a_fork_before_attach_is_a_process_like_any_other(process: Run) -> None:
    """Each child has a session and a private folder of its own; what one saves the next one hits."""
    told = process(BEFORE_ATTACH)

    assert told["first"]["misses"]["inductor"] == 1
    assert told["second"]["misses"] == {}
    assert told["third"]["misses"] == {}
    assert told["third"]["hits"]["inductor"] == 1
    assert (
        len(told["folders"]) == 1
    )  # that of the child that left without clearing up went with the next start


OUTLIVED = (
    FORK
    + """
    module = Product()
    session = cachekit.attach(module, dir=store, plan=plan)
    call(module, 2, 8)
    session.save(wait=True)
    session.facts.note("a word")
    folder = os.path.dirname(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    read, write = os.pipe()
    if not os.fork():
        os.close(write)
        os.read(read, 1)  # until the parent is gone
        there = os.path.isdir(folder)
        old, new = call(module, 2, 8).sum().item(), call(module, 7, 8).sum().item()
        tell(there=there, folder=os.path.basename(folder), old=old, new=new, live=session.live())
"""
)


def test_a_child_that_outlives_its_parent_goes_on(process: Run) -> None:
    """The private folder stays as long as the child needs it; old code runs, and so does what is compiled now.

    The next start removes the folder.
    """
    told = process(OUTLIVED)

    assert told["there"]
    assert told["old"] == 2 * 8 * 4.0
    assert told["new"] == 7 * 8 * 4.0
    assert not told["live"]
    after = process(
        "cachekit.attach(Product(), dir=store)\ntell(folders=os.listdir(os.path.join(store, 'process')))"
    )
    assert told["folder"] not in after["folders"]
