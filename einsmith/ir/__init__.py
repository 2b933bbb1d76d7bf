"""The IR: nodes, printer, verifier, rebuild, and the evaluator that defines its meaning."""

from einsmith.ir import printer as printer  # nodes are shown by it
