"""The runtime: the only code that touches torch's compile state.

``session`` decides what happens when; ``process`` holds what a process has one of (private folder, environment,
watches on torch); ``recorder`` and ``kernels`` learn what was compiled, ``profile`` and ``units`` make values of it,
``library`` and ``installer`` keep and install it, ``report`` says what it was worth. Every private name of torch is in
``torch_private``.
"""
