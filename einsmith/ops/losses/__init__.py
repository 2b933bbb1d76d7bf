"""Loss functions, each a function that returns a formula."""
