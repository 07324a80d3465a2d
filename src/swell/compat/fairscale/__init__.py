"""FairScale's AdaScale: ``from swell.compat.fairscale.optim import AdaScale, AdaScaleWrapper``."""
