"""The chunk form of linear recurrences: recognition, derivation, choice."""
