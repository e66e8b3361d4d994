"""What each mode does, and that a cache that fails never breaks the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.functional.conftest import Run

pytestmark = pytest.mark.slow

RUN = """
    module = Product()
    session = cachekit.attach(module, dir=store, mode=mode)
    outcome = "ran"
    for rows in sizes:
        try:
            call(module, rows, 8)
        except cachekit.CachekitError as error:
            outcome = f"{error.code}: {error}"
    report = session.report().to_json()
    session.close()
    tell(report=report, outcome=outcome)
"""


def test_strict_mode_serves_what_is_covered_and_raises_on_the_rest(process: Run) -> None:
    """In strict mode a covered shape runs; an uncovered one raises StrictMissError before code is generated."""
    process(RUN, sizes=[4], mode="auto")

    covered = process(RUN, sizes=[4], mode="strict")
    uncovered = process(RUN, sizes=[4, 6], mode="strict")

    assert covered["outcome"] == "ran"
    assert uncovered["outcome"].startswith("strict-miss: CACHEKIT_MODE=strict")
    assert uncovered["report"]["saved_generations"] == []


def test_readonly_mode_installs_and_never_saves(process: Run) -> None:
    """A readonly session hits what is kept, compiles the rest, and leaves the store as it was."""
    process(RUN, sizes=[4], mode="auto")

    readonly = process(RUN, sizes=[4, 6], mode="readonly")["report"]
    after = process(RUN, sizes=[4, 6], mode="readonly")["report"]

    assert readonly["hits"]["inductor"] == 1
    assert readonly["misses"]["inductor"] == 1
    assert after["misses"]["inductor"] == 1


def test_off_compiles_and_touches_nothing(process: Run, tmp_path: Path) -> None:
    """With the cache off the module is compiled by plain torch, and no folder is made."""
    told = process(
        """
        module = Product()
        session = cachekit.attach(module, dir=store, mode="off")
        before = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        call(module, 4, 8)
        from torch._dynamo.utils import counters
        tell(graphs=counters["stats"]["unique_graphs"], state=session.state, made=os.path.exists(store),
             moved=os.environ["TORCHINDUCTOR_CACHE_DIR"] != before)
        """
    )

    assert told == {**told, "graphs": 1, "state": "disabled", "made": False, "moved": False}


def test_on_mode_offers_again_what_it_was_given(process: Run, tmp_path: Path) -> None:
    """A baker's warm start puts back an artifact whose blob was lost."""
    process(RUN, sizes=[4], mode="auto")
    blobs = [path for path in (tmp_path / "cachekit" / "store").rglob("blobs/sha256/*/*") if path.is_file()]
    assert blobs
    for blob in blobs:
        blob.unlink()

    process(RUN, sizes=[4], mode="on")

    assert process(RUN, sizes=[4], mode="strict")["outcome"] == "ran"


@pytest.mark.parametrize(
    "fault", ["a file in place of the folder", "a damaged head", "a damaged blob", "a foreign key"]
)
def test_a_broken_store_is_a_cold_start_with_a_reason(process: Run, tmp_path: Path, fault: str) -> None:
    """Whatever is wrong with what is kept, the engine runs, the report says why, and nothing wrong is installed."""
    root = tmp_path / "cachekit"
    process(RUN, sizes=[4], mode="auto")
    _break(root, fault)

    report = process(RUN, sizes=[4], mode="readonly")

    assert report["outcome"] == "ran"
    assert report["report"]["reasons"]
    assert report["report"]["hits"].get("inductor", 0) == 0


def _break(root: Path, fault: str) -> None:
    if fault == "a file in place of the folder":
        root.rename(root.with_name("elsewhere"))
        root.write_text("not a folder")
    elif fault == "a damaged head":
        next(root.rglob("head.json")).write_bytes(b"{")
    elif fault == "a damaged blob":
        for blob in root.rglob("blobs/sha256/*/*"):
            blob.write_bytes(b"\0" * blob.stat().st_size)
    else:
        for key in (root / "keys").rglob("*.pem"):
            key.unlink()


def test_a_damaged_artifact_is_mended_by_the_next_save(process: Run, tmp_path: Path) -> None:
    """After a start that found blobs damaged and saved, the next one is warm again."""
    process(RUN, sizes=[4], mode="auto")
    _break(tmp_path / "cachekit", "a damaged blob")

    process(RUN, sizes=[4], mode="auto")

    assert process(RUN, sizes=[4], mode="strict")["outcome"] == "ran"


def test_a_failed_call_registers_no_shape_but_keeps_what_it_compiled(process: Run) -> None:
    """A generation that is cancelled after compiling leaves its artifacts in the bundle, and no shape."""
    told = process(
        """
        class Cancelled(Exception):
            pass


        class Interrupted(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Product()
                self.stop = False

            def forward(self, x):
                y = self.inner(x)
                torch._dynamo.graph_break()
                if self.stop:
                    raise Cancelled
                return y


        def start(stop):
            module = Interrupted()
            module.stop = stop
            return module, cachekit.attach(module, dir=store)


        module, session = start(True)
        try:
            call(module, 4, 8)
            raised = False
        except Cancelled:
            raised = True
        named = session.register_shape(4, 8, 1)
        session.save(wait=True)
        first = session.report().to_json()
        session.close()
        tell(raised=raised, named=named, report=first)
        """
    )

    assert told["raised"]
    assert not told["named"]
    assert told["report"]["shapes"] == []
    assert told["report"]["saved_generations"] == [1]


def test_a_session_is_inert_in_a_forked_child(process: Run) -> None:
    """A child of fork neither saves, nor deletes the parent's folder, nor hangs."""
    told = process(
        """
        module = Product()
        session = cachekit.attach(module, dir=store)
        call(module, 4, 8)
        session.save(wait=True)
        child = os.fork()
        if child == 0:
            session.register_shape(9, 9, 9)
            session.close()
            os._exit(0 if session.save() is False else 1)
        status = os.waitpid(child, 0)[1]
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        kept = os.path.isdir(folder)
        call(module, 6, 8)
        session.register_shape(6, 8, 1)
        session.close()
        tell(status=status, kept=kept, shapes=session.report().shapes)
        """
    )

    assert told["status"] == 0
    assert told["kept"]
    assert "9x9x9" not in told["shapes"]


def test_interpreter_exit_saves_what_is_unsaved(process: Run) -> None:
    """An engine that never closes its session still leaves a bundle behind."""
    process(
        """
        session = cachekit.attach(module := Product(), dir=store, save="close")
        call(module, 4, 8)
        tell()
        """
    )

    assert process(RUN, sizes=[4], mode="strict")["outcome"] == "ran"
