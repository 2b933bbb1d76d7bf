"""Measurements that choose configurations: of the machine, of kernels, of whole programs."""
