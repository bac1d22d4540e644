"""The reference client: an engine stand-in that loads a tier and checks each byte it gets.

It has W ranks, like an engine, and knows only the mounted engine Secret. ``keys``, ``striping``,
``objects``, ``values``, ``workload``, ``measures`` and ``report`` are pure; ``resolve``, ``resp``
and ``rank`` talk to Valkey, ``engine`` is one engine's process and ``run`` all of them.
"""
