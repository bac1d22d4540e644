"""The reference client: an engine stand-in that loads a tier and checks each byte it gets.

It has W ranks, like an engine, and knows only the mounted engine Secret. ``keys``, ``striping``,
``objects``, ``workload``, ``measures`` and ``report`` are pure; ``rank`` talks to Valkey by what
``kvtier.store`` has for large values, ``engine`` is one engine's process and ``run`` all of them.
"""
