"""List the operators of the core ATen set without a formula, with the reason that errors and documents give."""

from __future__ import annotations

_COUNT = "the number of results depends on values; extents must be known during compilation"
_COMPLEX = "complex numbers are not supported"
_PLACE = "it reads the memory layout; tensors are values without storage"

REFUSED = {
    "nonzero.default": _COUNT,
    "masked_select.default": _COUNT,
    "_local_scalar_dense.default": "it returns a Python number of a tensor, known only when the program runs",
    "_fft_c2r.default": _COMPLEX,
    "_fft_r2c.default": _COMPLEX,
    "_fft_c2c.default": _COMPLEX,
    "sym_stride.int": _PLACE,
    "sym_storage_offset.default": _PLACE,
    "sym_is_contiguous.default": _PLACE,
    "resize_.default": "it resizes memory in place, with uninitialized elements",
    "atan2.out": "it writes into an argument; use atan2 without `out`",
    "_native_batch_norm_legit.default": "it updates running statistics in place; torch.export makes it functional",
}
