"""Tests read as specifications; helpers of several of them are imported as ``tests.…``."""
