VERSION = "0.1.0"
"""Version of Einsmith."""
