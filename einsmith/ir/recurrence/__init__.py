"""Construction of recurrences from definitions that read each other."""
