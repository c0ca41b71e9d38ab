"""Deterministic code: decides, never acts."""
