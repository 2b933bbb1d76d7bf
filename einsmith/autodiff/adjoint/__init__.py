"""Derivatives of scalar functions; the adjoint of one node, gathered or scattered."""
