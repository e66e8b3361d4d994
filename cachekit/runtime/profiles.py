"""The fingerprints that one session has met: each found, installed, and what is new of it published.

Finding and installing happens on the thread that starts or compiles, publishing on the saver's.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from typing import Any

from cachekit.bundle import Bundle
from cachekit.errors import CachekitError
from cachekit.identity import Fingerprint
from cachekit.logs import said
from cachekit.runtime.background import quietly
from cachekit.runtime.facts import Facts
from cachekit.runtime.forks import held_here, renew_in_child, unforkable
from cachekit.runtime.installer import install
from cachekit.runtime.library import Library, told
from cachekit.runtime.process import PrivateFolder
from cachekit.runtime.profile import Pending, Profile
from cachekit.runtime.story import Story

MAX_EXPLAINED = 6
"""Fingerprints of one session that are explained: an engine may change its pipeline before each call."""


class Profiles:
    """Those of one session, by fingerprint. ``offer_all``: what is installed is published again (a baker)."""

    def __init__(
        self, library: Library, folder: PrivateFolder, facts: Facts, story: Story, *, offer_all: bool
    ) -> None:
        self.library = library
        self._folder = folder
        self._facts = facts
        self._story = story
        self._offer_all = offer_all
        self._lock = threading.RLock()
        self._met: dict[str, Profile] = {}
        self._last: Fingerprint | None = None
        self._noted: set[str] = set()
        self._nearest: dict[str, str] = {}
        renew_in_child(self)

    def of(self, fingerprint: Fingerprint, host: Mapping[str, str]) -> Profile:
        """The profile of a fingerprint; its bundle is found and installed the first time.

        ``host`` answers the requirements of artifacts with C++ in them.
        """
        with self._lock:
            if fingerprint.id not in self._met:
                started = time.perf_counter()
                bundle, damaged = self._install(fingerprint, host)
                self._met[fingerprint.id] = Profile(
                    fingerprint,
                    host,
                    bundle,
                    damaged=damaged or (),
                    offer_all=self._offer_all,
                    refused=damaged is None,
                    changed_from=self._last,
                )
                self._facts.load_s += time.perf_counter() - started
            self._last = fingerprint
            return self._met[fingerprint.id]

    def _install(
        self, fingerprint: Fingerprint, host: Mapping[str, str]
    ) -> tuple[Bundle | None, set[str] | None]:
        """The bundle that was installed, if any, and the identities in it that are damaged; None: it was refused."""
        try:
            with self._facts.steps("find"):
                bundle = self.library.find(fingerprint)
            if bundle is None:
                return None, set()
            done = install(self.library.store, bundle, self._folder, host, steps=self._facts.steps)
        except CachekitError as exc:
            self._facts.note(f"bundle not used: {exc.diagnostics()}")
            told = "cachekit cannot use what is kept, and starts cold: %s"
            self._story.trouble("unused", told, exc, fingerprint=fingerprint.id[:12])
            return None, None
        self._facts.add_installed(done)
        if done.problems:
            told = "cachekit cannot use a part of the bundle, which is compiled again: %s"
            more = f" (and {len(done.problems) - 1} more)" if len(done.problems) > 1 else ""
            facts = {"fingerprint": fingerprint.id[:12], "problems": len(done.problems)}
            self._story.trouble("partial", told, f"{done.problems[0]}{more}", **facts)
        return bundle, done.damaged

    def install_again(self, host: Mapping[str, str]) -> None:
        """Put what was installed into the private folder once more, which is another one now. Raises CachekitError."""
        for profile in self._all():
            if profile.bundle is not None:
                install(self.library.store, profile.bundle, self._folder, host)

    def _all(self) -> list[Profile]:
        return list(self._met.values())

    @property
    def dirty(self) -> bool:
        """Something was compiled that no kept bundle holds."""
        return any(profile.dirty for profile in self._all())

    @property
    def saving(self) -> bool:
        """Something of it is being published."""
        return any(profile.saving for profile in self._all())

    @property
    def unsaved(self) -> bool:
        """There is something to write down, be it only the label of a shape, or that a unit was used."""
        return any(profile.unsaved or profile.uncounted for profile in self._all())

    @property
    def held_here(self) -> bool:
        """Whether the calling thread was interrupted inside of a profile, which publishing would wait for."""
        return held_here(self._lock) or any(profile.held_here for profile in self._all())

    def explanations(self, current: Profile, *, inert: bool) -> list[str]:
        """Why fingerprints of this session had no bundle, and why that of ``current`` got no hit if it is inert.

        Why a bundle was refused was noted then.
        """
        absent = [profile for profile in self._all() if not profile.found and not profile.refused]
        wanted = [profile for profile in absent if profile.ran or profile is current]
        if current.found and inert:
            wanted.append(current)
        more = len(wanted) - MAX_EXPLAINED
        found = [self._explanation(profile) for profile in wanted[-MAX_EXPLAINED:]]
        return [*found, f"no bundle for {more} earlier fingerprints of this session"] if more > 0 else found

    def _explanation(self, profile: Profile) -> str:
        """Of one fingerprint, found out once."""
        mine, before = profile.fingerprint, profile.changed_from
        if mine.id not in self._nearest:
            if before is None or profile.found:
                text = self.library.explain(mine, profile.bundle if profile.found else None)
            else:
                text = f"the fingerprint changed from {before.id[:12]} to {mine.id[:12]} while attached, for which "
                text += f"there was no bundle: {told(before.diff(mine))}"
            self._nearest[mine.id] = text
        return self._nearest[mine.id]

    def publish(self) -> bool:
        """Publish what each profile has that its bundle lacks, and note warm starts in the manifest.

        False if something could not be published, which is then noted and kept for the next try.
        """
        with quietly():
            return self._publish_all()

    def _publish_all(self) -> bool:
        _load_libraries()
        written, failed = 0, False
        for profile in self._all():
            pending = profile.take()
            if pending:
                added = self._publish(profile, pending)
                failed |= added is None
                written += added or 0
            elif profile.bundle is not None and profile.fingerprint.id not in self._noted:
                self._record("started", profile.bundle, saved_s=round(self._facts.saved_s, 3))
            self._noted.add(profile.fingerprint.id)
            self._count_uses(profile)
        for reason in self.library.keep_within_limit(written) if written else ():
            self._facts.note(reason)
        return not failed

    def _count_uses(self, profile: Profile) -> None:
        used = profile.take_uses()
        if used:
            with unforkable():
                problem = self.library.record_uses(profile.fingerprint.id, used)
            if problem:
                self._facts.note(problem)

    def _publish(self, profile: Profile, pending: Pending) -> int | None:
        """The bytes that were written; None where it failed, with a note."""
        started = time.perf_counter()
        try:
            published = self.library.publish(profile.fingerprint, pending, self._folder)
        except Exception as exc:  # the session goes on, and what was not saved is kept for the next try
            profile.give_back(pending)
            self._facts.note(f"not saved: {said(exc)}")
            fingerprint = profile.fingerprint.id[:12]
            self._story.trouble("unsaved", "cachekit could not save: %s", exc, fingerprint=fingerprint)
            return None
        except BaseException:  # whatever ends this thread, the next one saves it
            profile.give_back(pending)
            raise
        profile.adopt(published.bundle)
        if published.bytes_written:
            self._facts.saved.append(published.bundle.generation)
            self._story.saved(
                profile.fingerprint.id,
                generation=published.bundle.generation,
                seconds=round(time.perf_counter() - started, 3),
                artifacts=published.new_entries,
                bytes=published.bytes_written,
            )
        self._record("saved", published.bundle, bytes=published.bytes_written, new=published.new_entries)
        return published.bytes_written

    def _record(self, event: str, bundle: Bundle, **data: Any) -> None:
        with unforkable():  # a child would inherit SQLite's locks, which SQLite takes for its own
            problem = self.library.record(event, bundle, **data)
        if problem:
            self._facts.note(problem)
            self._story.trouble("unindexed", "cachekit: %s", problem, fingerprint=bundle.fingerprint_id[:12])


@functools.cache
def _load_libraries() -> None:
    """Import what publishing needs in one stretch that no fork cuts in half, down to cryptography and zstandard."""
    with unforkable():
        import cachekit.manifest  # noqa: F401
        from cachekit.bundle import signing
        from cachekit.store import fetch

        signing.sign(b"", signing.generate())
        fetch.pack(b"")
