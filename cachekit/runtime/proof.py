"""Making a session's report: its facts and the bundle as it is now, and why something was compiled where it was."""

from __future__ import annotations

from cachekit.runtime.facts import Facts
from cachekit.runtime.profile import Profile
from cachekit.runtime.profiles import Profiles
from cachekit.runtime.report import Report


def report(
    facts: Facts, profile: Profile | None, profiles: Profiles | None, *, state: str, mode: str
) -> Report:
    """Of a session whose pipeline was last known as ``profile``; may be asked from any thread, during a save too."""
    bundle = profile.bundle if profile else None
    return Report(
        state=state,
        mode=mode,
        fingerprint=profile.fingerprint.id if profile else None,
        generation=bundle.generation if bundle else None,
        installed=dict(facts.installed),
        skipped=dict(facts.skipped),
        hits=facts.hits,
        misses=dict(facts.tally.misses),
        bypasses=dict(facts.tally.bypasses),
        load_s=facts.load_s,
        steps=facts.steps.seconds,
        first_calls_s=facts.calls_s,
        covered_calls_s=facts.warm_calls_s,
        cold_s=facts.cold_s or 0.0,
        effective=facts.effective,
        inert=facts.inert,
        shapes=tuple(shape.label for shape in profile.shapes()) if profile else (),
        saved_generations=tuple(facts.saved),
        reasons=tuple(reasons(facts, profile, profiles)),
        counters=dict(facts.tally.raw),
    )


def reasons(facts: Facts, profile: Profile | None, profiles: Profiles | None) -> list[str]:
    """Everything noted, and for each fingerprint without a bundle, or with an inert one, what differs from others."""
    if profiles is None or profile is None:
        return facts.told()
    return [*facts.told(), *profiles.explanations(profile, inert=facts.inert)]
