"""A tier without a cluster: its ranks as local processes, for ``kvtier try``.

``scale`` is pure. ``program`` finds a server, ``keeper`` is the process that owns the servers and
their directory, ``session`` is the caller's side of it, ``files`` what they and engines read, and
``reference`` the fetch that is timed.
"""
