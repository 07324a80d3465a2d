"""Gradients on their way to the optimizer: accumulated with weights, measured, exchanged, applied with factors."""
