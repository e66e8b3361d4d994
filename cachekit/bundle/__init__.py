"""Bundles: what the compiler produced, as values.

Pure functions and frozen dataclasses; nothing here imports torch, opens a file or talks to a network. The
stores move what this package encodes, the runtime records and installs it.
"""
