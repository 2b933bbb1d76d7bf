"""The simplifier and its rules, closed forms of reductions, the order of products."""
