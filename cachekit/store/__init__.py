"""Stores: where bundles and their blobs are kept, under the same keys in every implementation.

``base`` is the interface, ``local`` a directory, ``memory`` a dictionary; ``keys`` the local signing key; ``fetch`` and
``publish`` are the two things anyone does with a store. Nothing here imports torch or SQLAlchemy, and this package
imports none of its modules by itself, so that a start pays only for what it uses.
"""
