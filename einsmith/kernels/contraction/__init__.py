"""Products and convolutions: configurations, costs, legality."""
