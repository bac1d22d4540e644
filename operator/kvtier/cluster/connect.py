"""Finding the API server: from inside a pod, or from a kubeconfig."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import (
    ConfigException,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)

from kvtier.cluster.client import IN_FLIGHT, TIMEOUT, AioCluster
from kvtier.cluster.protocol import FIELD_MANAGER
from kvtier.cluster.watches import OnRequest

_FIX = "name a kubeconfig and one of its contexts"
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NoCluster(ValueError):
    """No API server is configured; the message says what to do."""


@asynccontextmanager
async def connect(
    *,
    context: str | None = None,
    kubeconfig: str | None = None,
    strict_x509: bool = True,
    in_flight: int = IN_FLIGHT,
    timeout: float = TIMEOUT,
    field_manager: str = FIELD_MANAGER,
    on_request: OnRequest | None = None,
) -> AsyncIterator[AioCluster]:
    """A client for the cluster of the pod it runs in; with a context or a kubeconfig, for that.

    ``strict_x509`` False accepts a CA certificate without key usage, which Python 3.13 and later
    otherwise refuse. Raises NoCluster.
    """
    configuration = await configure(context=context, kubeconfig=kubeconfig, strict_x509=strict_x509)
    cluster = AioCluster(
        configuration,
        field_manager=field_manager,
        in_flight=in_flight,
        timeout=timeout,
        on_request=on_request,
    )
    try:
        yield cluster
    finally:
        await cluster.close()


async def configure(
    *, context: str | None = None, kubeconfig: str | None = None, strict_x509: bool = True
) -> Configuration:
    """Where the API server is and how to show who we are. Raises NoCluster."""
    configuration = Configuration()
    configuration.disable_strict_ssl_verification = not strict_x509
    if _in_cluster(context=context, kubeconfig=kubeconfig):
        try:
            load_incluster_config(configuration)
        except (ConfigException, OSError) as error:
            raise NoCluster(f"service account: {error}; mount one into the pod") from error
        return configuration
    with _readable(kubeconfig) as path:
        await load_kube_config(path, context, configuration, persist_config=False)
    return configuration


def default_namespace(*, context: str | None = None, kubeconfig: str | None = None) -> str:
    """The namespace that ``kubectl`` would take without being told. Raises NoCluster."""
    if _in_cluster(context=context, kubeconfig=kubeconfig):
        return _OWN_NAMESPACE.read_text() if _OWN_NAMESPACE.exists() else "default"
    with _readable(kubeconfig) as path:
        known, current = list_kube_config_contexts(path)
    wanted = context or current["name"]
    named = [each["context"] for each in known if each["name"] == wanted]
    return str(named[0].get("namespace") or "default") if named else "default"


def contexts(*, kubeconfig: str | None = None) -> list[str]:
    """The names of the contexts of a kubeconfig. Raises NoCluster."""
    with _readable(kubeconfig) as path:
        found, _ = list_kube_config_contexts(path)
    return [str(each["name"]) for each in found]


def _in_cluster(*, context: str | None, kubeconfig: str | None) -> bool:
    return not context and not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ


@contextmanager
def _readable(kubeconfig: str | None) -> Iterator[str]:
    """The files to read, as KUBECONFIG lists them. What goes wrong in reading is NoCluster."""
    path = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [Path(each).expanduser() for each in path.split(os.pathsep)]
    if not any(file.exists() for file in files):
        # The library would say so on standard error, and something else in its exception.
        raise NoCluster(f"kubeconfig {path}: no such file; name a kubeconfig")
    try:
        yield os.pathsep.join(map(str, files))
    except (ConfigException, OSError) as error:
        said = " ".join(str(error).split())
        raise NoCluster(f"kubeconfig {path}: {said}; {_FIX}") from error
    except (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError) as error:
        # The library takes for granted that it is YAML, a mapping, and in the form of a kubeconfig.
        raise NoCluster(f"kubeconfig {path}: this is none; {_FIX}") from error
