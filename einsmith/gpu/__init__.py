"""The back end of graphics cards: tiles, their code in Triton, CUDA's driver, and prices."""
