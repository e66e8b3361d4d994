"""The version of the library, and the only place that states it."""

from __future__ import annotations

__version__ = "0.1.0"
