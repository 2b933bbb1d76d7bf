"""The functions exp, log, tanh, sin and others over vectors."""
