"""The interfaces of AdaptDL, FairScale's AdaScale, ETH's variable_batch_size and Run:AI, on top of swell.

Each facade translates calls and units; formulas, plans and orders are those of ``swell.core``, ``swell.rules`` and
``swell.policies``. What differs from the originals, and why, is on the migration page of each.
"""
