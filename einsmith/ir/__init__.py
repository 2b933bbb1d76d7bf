"""The IR: nodes, printer, verifier, rebuild, and the evaluator that defines its meaning."""

from einsmith.ir import function_table as function_table  # fills the table of scalar functions
from einsmith.ir import printer as printer  # nodes are shown by it
