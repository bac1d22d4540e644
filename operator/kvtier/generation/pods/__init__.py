"""Pure: what one pod's KV would be, as far as its manifest and status tell.

``read`` has the entry points. Nothing here is a guess: what cannot be known is reported as
unreadable, with the reason, and nothing that a pod says can raise an error.
"""
