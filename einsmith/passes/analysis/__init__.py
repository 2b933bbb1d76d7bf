"""Minimum cuts, saved sets, checks of computed indices."""
