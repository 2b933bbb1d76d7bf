"""Reverse and forward mode, and batching."""
