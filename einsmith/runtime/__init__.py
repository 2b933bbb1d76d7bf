"""Programs, threads, the arena, and parameters and state in memory."""
