"""The probe: how fast, and how far away, a tier's ranks are from one node.

``config``, ``rates`` and ``result`` are pure. ``rank`` is one rank's process, with ``reader`` for
what is timed and ``cpu`` for whether its own CPU was the limit; ``worker`` is all of them.
"""
