"""Element types, errors, environment variables, locks, caches, files, checks of arguments."""

VERSION = "0.1.0"
"""Version of Einsmith."""
