"""What cachekit really saves, measured: each start in a process of its own, JSON of every run kept.

Scripts beside the library, not a part of it; see ``README.md`` here for what is measured and how.
"""
