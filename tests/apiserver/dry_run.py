"""One connection to the API server on which objects are created and nothing is stored."""

import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from apiserver_process import ApiServer


class DryRun:
    """Asks the API server itself, which is many times faster than a kubectl for each object."""

    def __init__(self, apiserver: ApiServer) -> None:
        address = urlsplit(apiserver.url)
        self._token = apiserver.token
        self._connection = http.client.HTTPSConnection(
            address.netloc, context=ssl.create_default_context(cafile=str(apiserver.ca)), timeout=30
        )

    def refusal(self, document: dict[str, Any]) -> str | None:
        """Why the API server refuses the namespaced object, None when it takes it."""
        version = document["apiVersion"]
        root = f"apis/{version}" if "/" in version else f"api/{version}"
        namespace = document["metadata"]["namespace"]
        self._connection.request(
            "POST",
            f"/{root}/namespaces/{namespace}/{document['kind'].lower()}s"
            "?dryRun=All&fieldValidation=Strict",
            body=json.dumps(document),
            headers={
                "Authorization": f"Bearer {self._token}",
                "Content-Type": "application/json",
            },
        )
        answer = json.loads(self._connection.getresponse().read())
        return str(answer["message"]) if answer["kind"] == "Status" else None

    def close(self) -> None:
        self._connection.close()
