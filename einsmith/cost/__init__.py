"""Machine facts, microarchitectures, overheads, the roofline and memory traffic."""
