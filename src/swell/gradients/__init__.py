"""Gradients on their way to the optimizer: summed with weights, measured, exchanged, applied with factors."""
