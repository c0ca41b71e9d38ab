"""Seeing what runs did."""
