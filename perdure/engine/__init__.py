"""The engine: how a process finds a Temporal server, or runs one of its own."""
