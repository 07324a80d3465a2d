"""A worker's side of the run: its processes, devices, process groups and environment."""
