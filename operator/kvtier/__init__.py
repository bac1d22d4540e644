"""kvtier: a Kubernetes operator for KV cache tiers of LLM prefill fleets."""

from importlib.metadata import version

__version__ = version("kvtier")
