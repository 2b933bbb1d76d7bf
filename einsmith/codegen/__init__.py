"""Loop nests, and the machine code made of them."""
