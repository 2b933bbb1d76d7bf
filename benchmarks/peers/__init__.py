"""One file per library. Each offers VERSION and `build(problem, arrays, threads, peer)`, which gives a Session."""
