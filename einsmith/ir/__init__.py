from einsmith.ir import printer as printer  # nodes are shown by it
