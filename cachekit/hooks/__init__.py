"""Engine hooks: one call for a diffusers pipeline or a plain module.

``attach`` chooses the target, binds a session, carries the plan out and starts to observe. Whatever fails on the
cache's side leaves the pipeline compiled by plain ``torch.compile``, or untouched where even that cannot be done.
"""

from __future__ import annotations

from cachekit.hooks.attach import attach

__all__ = ["attach"]
