"""The distributor: a FastAPI application over S3 that merges bundles and hands them to the next node.

Its place only; nothing is served yet. What will live here, one folder per domain, routes translating and services
deciding:

    app.py  settings.py  db.py  health.py
    auth/         tokens per namespace: read, write, admin
    bundles/      profiles, heads, contributions, tombstones, rollback
    blobs/        presigned uploads and downloads
    leases/       one node compiles what all of them need
    demand/       what was asked for and is not covered; the bake plan
    dashboard/    what is covered, missing and worth baking

It may use ``cachekit.bundle``, ``cachekit.identity.fingerprint`` and ``cachekit.store``, and never torch. It is a
distribution of its own (``torch-cachekit-server``), because a top-level ``server`` must not land in the
site-packages of an engine that installs the library.
"""

from __future__ import annotations
