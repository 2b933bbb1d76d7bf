"""The experiments of the five papers that Einsmith unites, each paper with one command: python -m benchmarks.paper."""
