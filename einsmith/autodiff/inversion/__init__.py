"""Inverse index maps over the integers."""
