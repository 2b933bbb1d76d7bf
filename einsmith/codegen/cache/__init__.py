"""Object code on disk, and compilation in worker processes."""
