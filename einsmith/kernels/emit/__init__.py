"""Addresses and vector code, shared by all patterns."""
