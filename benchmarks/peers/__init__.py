"""One file per library, and one with its operators.

Each library offers VERSION and `build(problem, arrays, threads, peer, variant)`, which gives a Session, and
`variants(network, peer)`: the names of the formulations among which the fastest is chosen, or None where there is one.
`prepare()`, where it exists, does what an installation needs once, before anything is timed.
"""
