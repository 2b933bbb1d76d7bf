"""List the operators of the core ATen set without a formula, with the reason that errors and the docs give."""

from __future__ import annotations

_COUNT = "how many elements it gives depends on values, and extents are known when a program is compiled"
_COMPLEX = "it gives or takes complex numbers, which Einsmith has not"
_PLACE = "it asks where elements lie in memory; tensors have values, not places"

REFUSED = {
    "nonzero.default": _COUNT,
    "masked_select.default": _COUNT,
    "_local_scalar_dense.default": "it makes a Python number of a tensor, whose values are known only as programs run",
    "_fft_c2r.default": _COMPLEX,
    "_fft_r2c.default": _COMPLEX,
    "_fft_c2c.default": _COMPLEX,
    "sym_stride.int": _PLACE,
    "sym_storage_offset.default": _PLACE,
    "sym_is_contiguous.default": _PLACE,
    "resize_.default": "it gives memory another size in place, with elements that nothing set",
    "atan2.out": "it writes into a tensor of the caller; the form without `out` is there",
    "_native_batch_norm_legit.default": "it changes its running statistics in place; export gives the functional form",
}
