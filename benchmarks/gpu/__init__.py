"""Measure Einsmith on an NVIDIA card: see `benchmarks.gpu.__main__` for the command.

`__main__` and `packages` import only the standard library, as other packages may have to be installed first.
"""
