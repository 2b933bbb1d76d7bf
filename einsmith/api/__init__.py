"""Functions of tensors: `jit`, `grad`, `vjp`, `jvp`, `vmap`."""
