"""Examples: agents to read, run and copy."""
