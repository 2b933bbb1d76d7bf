"""Code of contractions: packing, register tiles, prefetching, epilogues."""
