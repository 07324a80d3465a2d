"""Slow, obvious twins of what the package computes fast."""
