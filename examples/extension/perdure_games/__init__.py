"""What this package adds to Perdure; see its pyproject.toml."""
