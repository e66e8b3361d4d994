"""What the generating thread does for the cache: it hands over, and touches no file."""

from __future__ import annotations

import pytest

from tests.functional.conftest import Run

pytestmark = pytest.mark.slow


def test_the_hand_over_touches_no_file(process: Run) -> None:
    """A generation ends without IO, however much is to be saved: the saver's thread does all of it."""
    told = process(
        """
        import threading

        events, watching, here = [], False, threading.get_ident()

        def watch(event, arguments):
            if watching and threading.get_ident() == here and event.partition(".")[0] in ("open", "os", "sqlite3"):
                events.append([event, *map(str, arguments[:1])])

        sys.addaudithook(watch)
        module = Product()
        session = cachekit.attach(module, dir=store)
        for shape in ((4, 8), (6, 8)):
            session.generation_started()
            call(module, *shape)
            watching = True
            session.generation_finished()
            watching = False
            session.save(wait=True)
        saved = session.report().saved_generations
        session.close()
        tell(events=events, saved=saved)
        """
    )

    assert told["events"] == []
    assert told["saved"] == [1, 2]
