"""The pipeline of graph passes."""
