"""The loop-nest IR, its builder, loop-invariant code motion, transposes in registers."""
