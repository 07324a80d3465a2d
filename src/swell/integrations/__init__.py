"""Adapters to other training frameworks; each translates for one of them and decides nothing."""
