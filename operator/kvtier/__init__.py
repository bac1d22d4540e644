"""kvtier: a Kubernetes operator for KV cache tiers of LLM prefill fleets."""

__version__: str


def __getattr__(name: str) -> str:
    # What looks it up takes half as long to import as a small process of ours takes to start.
    if name == "__version__":
        from importlib.metadata import version

        return version("kvtier")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
