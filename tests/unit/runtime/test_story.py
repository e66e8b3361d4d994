"""What the log gets: one line per event, fields under one name, trouble once, and nothing secret."""

from __future__ import annotations

import errno
import json
import logging
from typing import Any

import pytest

from cachekit.errors import ManifestError, StoreError
from cachekit.runtime.report import Report
from cachekit.runtime.story import MAX_LENGTH, Story, one_line

REPORT = Report(
    "clean",
    "auto",
    "f" * 64,
    3,
    {"inductor": 2},
    hits={"inductor": 2},
    load_s=0.1234567,
    reasons=("a\nreason",),
)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log from INFO on."""
    caplog.set_level(logging.INFO, logger="cachekit")
    return caplog


def _facts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.cachekit for record in caplog.records]  # type: ignore[attr-defined]


def _full(name: str) -> StoreError:
    """A full disk, met while writing some temporary file."""
    error = StoreError(f"cannot write /cache/{name}: No space left on device")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device", f"/cache/{name}")
    return error


def test_a_start_is_one_line_with_what_was_found_hit_and_saved(log: pytest.LogCaptureFixture) -> None:
    """The line is the report's; its fields are plain JSON under one attribute, counts by kind."""
    Story().started(lambda: REPORT)

    (facts,) = _facts(log)
    assert log.messages == [f"cachekit: {REPORT}"]
    assert log.records[0].name == "cachekit.session"
    assert facts == json.loads(json.dumps(facts))
    assert (facts["event"], facts["fingerprint"], facts["generation"]) == ("started", "f" * 12, 3)
    assert (facts["installed"], facts["hits"], facts["misses"]) == ({"inductor": 2}, {"inductor": 2}, {})
    assert (facts["load_s"], facts["reasons"]) == (0.123, ["a reason"])


def test_no_report_is_made_for_a_log_that_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    """With INFO off, finding out what to say is not paid for."""
    caplog.set_level(logging.WARNING, logger="cachekit")

    Story().started(lambda: pytest.fail("a report was made"))
    Story().closed(lambda: pytest.fail("a report was made"))

    assert caplog.records == []


def test_a_full_disk_warns_once_until_a_save_succeeds(log: pytest.LogCaptureFixture) -> None:
    """The same errno is the same trouble, whatever the file was called; a new one after a good save is news."""
    story = Story()
    for name in ("a", "b", "c"):
        story.trouble("unsaved", "cachekit could not save: %s", _full(name))
    assert [record.levelname for record in log.records] == ["WARNING"]
    assert "/cache/a" in log.text
    assert _facts(log)[0] == {
        "event": "unsaved",
        "reason": "cannot write /cache/a: No space left on device",
        "error": "store",
        "errno": errno.ENOSPC,
    }

    story.saved("f" * 64, generation=2, seconds=0.5, artifacts=1, bytes=10)
    story.trouble("unsaved", "cachekit could not save: %s", _full("d"))

    assert [record.levelname for record in log.records] == ["WARNING", "INFO", "WARNING"]


def test_other_trouble_is_told_beside_it(log: pytest.LogCaptureFixture) -> None:
    """Another event, errno or message is another line."""
    story = Story()
    for event, error in (
        ("unsaved", _full("a")), ("unused", _full("a")), ("unsaved", ManifestError("locked")),
        ("unsaved", ManifestError("damaged")), ("unsaved", ManifestError("locked")),
    ):  # fmt: skip
        story.trouble(event, "cachekit: %s", error)

    assert [facts["event"] for facts in _facts(log)] == ["unsaved", "unused", "unsaved", "unsaved"]


def test_a_session_that_is_disabled_says_so_at_the_level_of_its_cause(log: pytest.LogCaptureFixture) -> None:
    """Switched off on purpose is INFO, broken is a WARNING."""
    Story().disabled("CACHEKIT_MODE=off", level=logging.INFO)
    Story().disabled("no folder", level=logging.WARNING)

    assert [(record.levelname, record.getMessage()) for record in log.records] == [
        ("INFO", "cachekit is disabled for this pipeline: CACHEKIT_MODE=off"),
        ("WARNING", "cachekit is disabled for this pipeline: no folder"),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("one\n  two\tthree", "one two three"),
        ("GET https://user:hunter2@host/x failed", "GET https://…@host/x failed"),
        ("s3://key:secret@bucket and ssh://me@host", "s3://…@bucket and ssh://…@host"),
        ("mail me@example.org about /cache/x@2", "mail me@example.org about /cache/x@2"),
        ("x" * 5000, "x" * (MAX_LENGTH - 1) + "…"),
    ],
)
def test_reasons_fit_a_line_and_keep_secrets(text: str, told: str) -> None:
    """Whatever a foreign error says: no line ends, no listings, no credentials of a URL; paths stay."""
    assert one_line(text) == told


def test_fields_clash_with_no_formatter(log: pytest.LogCaptureFixture) -> None:
    """Our one attribute is none of logging's own, and a formatter that prints all that is extra gets just it."""
    Story().disabled("no folder", level=logging.WARNING)
    own = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}

    assert vars(log.records[0]).keys() - own == {"cachekit"}


@pytest.mark.parametrize("event", ["started", "closed"])
def test_the_lines_of_a_report_begin_alike(log: pytest.LogCaptureFixture, event: str) -> None:
    """The name of what speaks, then the report, which begins with the state: nothing is said twice."""
    getattr(Story(), event)(lambda: REPORT)

    assert log.messages == [f"cachekit: {REPORT}"]


def test_a_report_that_cannot_be_made_is_left_out(log: pytest.LogCaptureFixture) -> None:
    """A line for people is nothing to disable a session for."""

    def fail() -> Report:
        raise ZeroDivisionError

    Story().started(fail)

    assert log.messages == []


def test_an_error_without_a_text_is_told_by_its_type(log: pytest.LogCaptureFixture) -> None:
    """Not as nothing."""
    Story().trouble("unsaved", "cachekit could not save: %s", TimeoutError())

    assert log.messages == ["cachekit could not save: TimeoutError"]
