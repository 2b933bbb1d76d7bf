"""Compare Einsmith with other libraries: verified results, interleaved rounds, each library in a process of its own."""
