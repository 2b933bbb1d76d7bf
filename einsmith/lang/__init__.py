"""The formula language, the Python builder, and traces."""
