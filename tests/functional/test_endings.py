"""How processes end in the middle of a save: nothing acknowledged is lost, nothing hangs, the next start works.

A save is stopped where it is about to move the head, its last step and the only one that counts: there it hangs, or
signals its process. The processes are forked from one that has imported torch and compiled nothing, and each runs to
its interpreter's end, exit handlers and all.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.functional.conftest import run_script

pytestmark = pytest.mark.slow

SESSION = """
import atexit, gc, signal, threading
module = Product()
session = cachekit.attach(module, dir=store, plan=plan, save="close")
call(module, 2, 8)
session.save(wait=True)                     # acknowledged
call(module, 3, 8)                          # not yet
kept = session._profiles.library.store
real, inside, go = kept.move_head, threading.Event(), threading.Event()

def in_the_middle(then):
    '''Have ``then`` called once when the next save is about to move the head.'''
    def move_head(*args):
        kept.move_head = real
        inside.set()
        then()
        return real(*args)
    kept.move_head = move_head

def interrupt(number=signal.SIGINT):
    '''Signal the main thread and wait until it was told, which is when it lets this thread go on.'''
    os.kill(os.getpid(), number)
    go.wait(60)

def told(*_):
    print("STATE", session.state, module._compiled_call_impl is None)
"""

NEXT = """
module = Product()
session = cachekit.attach(module, dir=store, plan=plan)
call(module, 2, 8), call(module, 3, 8)
session.close()
print("MISSES", session.report().misses.get("inductor", 0), len(os.listdir(os.path.join(store, "process"))))
"""

VERIFY = """
from cachekit.cli.app import app
app(["verify", "--dir", store], prog_name="cachekit")
"""

THEATRE = """
    import gc, tempfile
    import torch._dynamo, torch._inductor.compile_fx, torch._functorch._aot_autograd.autograd_cache
    import cachekit.manifest, cachekit.store.publish, cachekit.cli.app

    plan = cachekit.Plan("cpu", dynamic=False)
    cachekit.attach(Product(), dir=store, mode="off").close()  # imports what attaching imports
    gc.freeze()
    results, theatre, script = {}, os.getpid(), None
    for name, ending in endings.items():
        store = tempfile.mkdtemp()
        acts = []
        for act in (session + ending, verify, next_start):
            output = tempfile.TemporaryFile("w+")
            child = os.fork()
            if not child:
                os.dup2(output.fileno(), 1), os.dup2(output.fileno(), 2)
                script = act
                break
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            acts.append([status, output.read()])
        if script is not None:
            break
        results[name] = acts
    if os.getpid() == theatre:
        tell(results=results)
    else:
        exec(compile(script, "<ending>", "exec"), globals())
"""


class Ending(NamedTuple):
    """What a process does last, with what status it ends, and whether its last compile was saved all the same."""

    script: str
    status: int
    saved: bool = True


HANDLE = "signal.signal(signal.SIGINT, lambda *a: (go.set(), signal.default_int_handler(*a)))"
CLOSE = "signal.signal(signal.SIGTERM, lambda *_: (session.close(), told()))"

ENDINGS: Mapping[str, Ending] = {
    "sys.exit": Ending("sys.exit(3)", 3),
    "an exception": Ending("raise ValueError('of the engine')", 1),
    "sys.exit during a save": Ending(
        """
        in_the_middle(lambda: go.wait(60)); session.save(); inside.wait(60)
        atexit.register(go.set)
        sys.exit(0)
        """,
        0,
    ),
    "os._exit during a save": Ending(
        "in_the_middle(lambda: go.wait(60)); session.save(); inside.wait(60); os._exit(4)", 4, saved=False
    ),
    "SIGTERM during a save": Ending(
        "in_the_middle(lambda: interrupt(signal.SIGTERM)); session.save(wait=True)",
        -signal.SIGTERM,
        saved=False,
    ),
    "SIGTERM that exits": Ending(
        """
        signal.signal(signal.SIGTERM, lambda *_: (go.set(), sys.exit(5)))
        in_the_middle(lambda: interrupt(signal.SIGTERM)); session.save(wait=True)
        """,
        5,
    ),
    "SIGINT while a save is waited for": Ending(
        f"""
        {HANDLE}
        in_the_middle(interrupt); session.save(wait=True)
        """,
        -signal.SIGINT,
    ),
    "SIGINT in close": Ending(
        f"""
        {HANDLE}
        in_the_middle(interrupt)
        try: session.close()
        except KeyboardInterrupt: told()
        """,
        0,
    ),
    "SIGINT in a generating call": Ending(
        """
        class Cut(torch.nn.Module):
            def forward(self, x):
                torch._dynamo.graph_break()
                os.kill(os.getpid(), signal.SIGINT)
                return x
        other = Cut()
        with cachekit.attach(other, dir=store + "-other", plan=plan):
            call(other, 2, 8)
        """,
        -signal.SIGINT,
    ),
    "close in a signal handler": Ending(
        f"""
        {CLOSE}
        os.kill(os.getpid(), signal.SIGTERM)
        """,
        0,
    ),
    "close in a signal handler that cuts into our own code": Ending(
        f"""
        {CLOSE}
        with session.profile._lock: os.kill(os.getpid(), signal.SIGTERM)
        """,
        0,
    ),
    "close in a finalizer that cuts into our own code": Ending(
        """
        class Engine:
            def __del__(self): session.close(), told()
        engine = Engine(); engine.itself = engine; del engine
        with session.profile._lock: gc.collect()
        """,
        0,
    ),
    "close on two threads, twice": Ending(
        """
        thread = threading.Thread(target=lambda: (session.close(), told()), daemon=True)
        thread.start()
        session.close(), session.close(), thread.join(60)
        """,
        0,
    ),
    "a daemon thread that never ends": Ending(
        """
        # One that is within torch at that moment ends in torch's own abort, with or without us.
        work = lambda: (call(module, 2, 8), inside.set(), threading.Event().wait())
        threading.Thread(target=work, daemon=True).start()
        inside.wait(60)
        """,
        0,
    ),
    "no more threads": Ending(
        """
        def refuse(self): raise RuntimeError("can't start new thread")
        threading.Thread.start = refuse
        """,
        0,
    ),
    "a save that hangs": Ending(
        """
        import cachekit.runtime.endings as endings
        endings.EXIT_TIMEOUT_S = 0.5
        in_the_middle(lambda: threading.Event().wait()); session.save(); inside.wait(60)
        """,
        0,
        saved=False,
    ),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    """Every ending, then verify, then the next start: their statuses and outputs."""
    endings = {name: textwrap.dedent(ending.script) for name, ending in ENDINGS.items()}
    folder = tmp_path_factory.mktemp("endings")
    told = run_script(THEATRE, folder, endings=endings, session=SESSION, verify=VERIFY, next_start=NEXT)
    results: dict[str, Any] = told["results"]
    return {name: [(status, output) for status, output in acts] for name, acts in results.items()}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_may_end_anywhere_in_a_save(played: dict[str, list[tuple[int, str]]], ending: str) -> None:
    """The store verifies, what was acknowledged is hit by the next start, and the dead process leaves no folder.

    What was not acknowledged is there as well wherever the interpreter was left the time to finish.
    """
    _, status, saved = ENDINGS[ending]
    (ended, output), (verified, findings), (started, after) = played[ending]

    assert ended == status, output
    assert verified == 0, findings
    assert started == 0, after
    assert f"MISSES {0 if saved else 1} 1" in after, output + after


@pytest.mark.parametrize("ending", [name for name in ENDINGS if "close" in name])
def test_closing_puts_everything_back_wherever_it_is_called(
    played: dict[str, list[tuple[int, str]]], ending: str
) -> None:
    """Whoever calls it, and whatever it cuts into: the session is closed and the module plain."""
    assert "STATE closed True" in played[ending][0][1]


def test_a_save_that_hangs_is_told(played: dict[str, list[tuple[int, str]]]) -> None:
    """The exit waits for a bounded time, and the log says what was not done."""
    assert "the last save was not done" in played["a save that hangs"][0][1]


def test_an_orderly_end_is_silent(played: dict[str, list[tuple[int, str]]]) -> None:
    """No traceback of ours on the way out."""
    for name in ("sys.exit", "sys.exit during a save", "SIGTERM that exits", "no more threads"):
        assert "Traceback" not in played[name][0][1], played[name][0][1]
