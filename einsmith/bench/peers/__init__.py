"""Set up training steps in each library.

Each module offers VERSION, `build(problem, arrays, threads, peer, variant)`, which gives a `problem.Session`, and,
where a library has several formulations, `variants(problem, peer)`, their names."""
