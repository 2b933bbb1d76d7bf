"""The command `einsmith`."""
