"""From graph to plan: fusion, order, arena, in-place reuse, rematerialization; the kernel IR."""
