"""The operator stopped, or refused, at every call: worlds, scenarios, and what must come out."""
