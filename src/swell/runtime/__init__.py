"""The worker's side of a run: environment, world, device and process groups."""
