"""The interfaces of AdaptDL, FairScale's AdaScale, ETH's variable_batch_size and Run:AI, on top of swell.

Each facade translates calls and units; formulas, plans and orders come from ``swell.core``, ``swell.rules`` and
``swell.policies``. The migration page of each says what differs from the original, and why.
"""
