"""What the arithmetic promises."""
