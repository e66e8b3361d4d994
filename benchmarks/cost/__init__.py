"""What cachekit costs: per call, while it saves, in memory, and before a warm start; see ``run.py``.

Every measurement runs in a process of its own, beside what it is compared with.
"""
