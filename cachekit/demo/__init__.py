"""The demonstration: real pipelines with random weights, made on the spot, started cold and warm.

It sits at the top, beside the command line, and is the only part of the library that builds models. Nothing else
imports it, and it downloads nothing.
"""
