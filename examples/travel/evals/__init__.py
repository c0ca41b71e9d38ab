"""How the travel agent is evaluated."""
