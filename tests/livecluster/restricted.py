"""What the Pod Security Standard `restricted` asks of a pod and of each of its containers."""

from typing import Any, Final

POD: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    # The Secret that an engine mounts is for its group.
    "fsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
