"""What a session tells the log: one line for each thing that happened, with its facts as fields.

Every record of the logger ``cachekit.session`` has one attribute beyond those of `logging`: ``cachekit``, a dict of
plain JSON values whose ``event`` says what happened (docs/guide/logging.md has the table). It is one attribute, so that
no name of ours can clash with a record's own, and formatters that add what is extra need no configuration.

Quiet by default: what went well is INFO, trouble is one WARNING. The same trouble is told once a session, nothing is
ever told per call. What is below a session tells its decisions at INFO and DEBUG: whether they are trouble is decided
here, where it is known what became of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from cachekit.errors import CachekitError
from cachekit.logs import Log, said
from cachekit.runtime.report import Report

log = Log("cachekit.session")

MAX_LENGTH = 600
"""Characters of a reason. Compilers answer with whole listings; the report keeps them."""

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def one_line(text: str) -> str:
    """A reason as it is fit for a log: one line, not too long, without what stands for a password in a URL."""
    flat = _CREDENTIALS.sub("…", " ".join(text.split()))
    return flat if len(flat) <= MAX_LENGTH else flat[: MAX_LENGTH - 1] + "…"


class Story:
    """That of one session. Safe to use from several threads."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def started(self, report: Callable[[], Report]) -> None:
        """The first generation ended: what was found, hit and saved."""
        self._tell_report("started", report)

    def closed(self, report: Callable[[], Report]) -> None:
        """The session ended: what it did, all in all."""
        self._tell_report("closed", report)

    def _tell_report(self, event: str, report: Callable[[], Report]) -> None:
        if not log.tells(logging.INFO):
            return
        try:
            found = report()
        except Exception as exc:  # a line for people: without it the session is as well as before
            log.debug("cachekit has no report", exc_info=exc)
        else:
            self._tell(logging.INFO, event, "cachekit: %s", found, **_facts(found))

    def saved(self, fingerprint: str, **facts: Any) -> None:
        """A generation was committed; a later failure to save is news again."""
        self._told = {told for told in self._told if told[0] != "unsaved"}
        message = "cachekit saved generation %s of %s in %.3f s: %s new artifacts, %s bytes"
        values = facts["generation"], fingerprint[:12], facts["seconds"], facts["artifacts"], facts["bytes"]
        self._tell(logging.INFO, "saved", message, *values, fingerprint=fingerprint[:12], **facts)

    def disabled(self, reason: str, *, level: int) -> None:
        """The session goes on without a cache."""
        reason = one_line(reason)
        self._tell(level, "disabled", "cachekit is disabled for this pipeline: %s", reason, reason=reason)

    def trouble(self, event: str, message: str, reason: str | Exception, **facts: Any) -> None:
        """Something is wrong, and the session goes on; ``message`` says with ``%s`` where the reason belongs.

        Errors count as the same if their class and errno do: a full disk has another temporary name each time.
        """
        facts |= {"reason": one_line(_text(reason))}
        same = facts["reason"]
        if isinstance(reason, Exception):
            cause = reason if isinstance(reason, OSError) else reason.__cause__
            number = cause.errno if isinstance(cause, OSError) else None
            code = reason.code if isinstance(reason, CachekitError) else type(reason).__name__
            facts |= {"error": code, "errno": number}
            same = f"{code} {number}" if number is not None else f"{code} {same}"
        if (event, same) not in self._told:
            self._told.add((event, same))
            self._tell(logging.WARNING, event, message, facts["reason"], **facts)

    def _tell(self, level: int, event: str, message: str, *values: Any, **facts: Any) -> None:
        log.log(level, message, *values, extra={"cachekit": {"event": event, **facts}})


def _text(reason: str | Exception) -> str:
    """A message as it is; the type of an error that has none."""
    if isinstance(reason, str):
        return reason
    kind, _, text = said(reason).partition(": ")
    return text or kind


def _facts(report: Report) -> dict[str, Any]:
    return {
        "fingerprint": report.fingerprint[:12] if report.fingerprint else None,
        "generation": report.generation,
        "mode": report.mode,
        "state": report.state,
        "installed": dict(report.installed),
        "skipped": sum(report.skipped.values()),
        "hits": dict(report.hits),
        "misses": dict(report.misses),
        "bypasses": dict(report.bypasses),
        "load_s": round(report.load_s, 3),
        "first_calls_s": round(report.first_calls_s, 3),
        "saved_s": round(report.saved_s, 3),
        "effective": report.effective,
        "saved_generations": list(report.saved_generations),
        "reasons": [one_line(reason) for reason in report.reasons],
    }
