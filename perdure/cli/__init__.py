"""The commands of `perdure`, one module per group; `starter.py` assembles them."""
