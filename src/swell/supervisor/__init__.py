"""The supervisor's side: starts, watches and replaces workers. Nothing here imports torch."""
