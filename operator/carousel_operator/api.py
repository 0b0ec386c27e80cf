"""The API server in the few verbs that the operator needs, over the official client's asyncio transport.

Objects go in and out as JSON; every failure is an ApiError with the status, the reason and the server's message.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from carousel_operator import names
from carousel_operator.kinds import POD, Kind
from carousel_operator.view import Json

REQUEST_SECONDS = 30.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
RETRIED = frozenset({0, 409, 410, 422, 429, 500, 502, 503, 504})


class ApiError(Exception):
    """An answer that is not a success; status 0 means that there was no answer."""

    def __init__(self, verb: str, path: str, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{verb} {path}: {status or 'no answer'} {message}")
        self.status = status
        self.message = message
        self.retry_after = retry_after

    @property
    def passing(self) -> bool:
        """Worth trying again soon: the same request may succeed."""
        return self.status in RETRIED


class Api:
    """A connection to one API server. Close it when done."""

    def __init__(self, connection: client.ApiClient, *, count: Any = None) -> None:
        self._client = connection
        self._count = count or (lambda kind, verb: None)

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, *, count: Any = None) -> "Api":
        """From a kubeconfig file, KUBECONFIG, or the pod's service account. Raises ConfigException."""
        configuration = client.Configuration()
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        return cls(client.ApiClient(configuration), count=count)

    @property
    def configuration(self) -> client.Configuration:
        """Host and credentials, for kopf's own connection."""
        return self._client.configuration

    async def close(self) -> None:
        """Close the connection pool."""
        await self._client.close()

    async def get(self, kind: Kind, namespace: str | None, name: str, subresource: str = "") -> Json | None:
        """The object, or None when there is none."""
        try:
            return await self._call("GET", kind.path(namespace, name, subresource))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list_all(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Json]:
        """All objects that match a label selector. Raises ApiError 404 where the kind does not exist."""
        query = [("labelSelector", selector)] if selector else []
        found = await self._call("GET", kind.path(namespace), query=query)
        return list(found.get("items") or ())

    async def list_metadata(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Json]:
        """As `list_all`, but only `metadata` of each object."""
        query = [("labelSelector", selector)] if selector else []
        found = await self._call("GET", kind.path(namespace), query=query, accept=METADATA)
        return list(found.get("items") or ())

    async def apply(self, kind: Kind, body: Json, subresource: str = "", *, force: bool = True) -> Json:
        """Server-side apply as the operator's field manager."""
        meta = body["metadata"]
        path = kind.path(meta.get("namespace"), meta["name"], subresource)
        query = [("fieldManager", names.FIELD_MANAGER), ("force", "true" if force else "false")]
        self._count(kind.kind, "apply")
        return await self._call("PATCH", path, query=query, body=body, content_type=APPLY)

    async def patch(self, kind: Kind, namespace: str, name: str, body: Json, subresource: str = "") -> Json:
        """A JSON merge patch; put metadata.uid or resourceVersion into it as a precondition."""
        query = [("fieldManager", names.FIELD_MANAGER)]
        self._count(kind.kind, "patch")
        return await self._call("PATCH", kind.path(namespace, name, subresource), query, body, MERGE)

    async def patch_pod_resize(self, namespace: str, name: str, body: Json) -> Json:
        """A strategic merge patch of a pod's resize subresource: containers merge by name."""
        query = [("fieldManager", names.FIELD_MANAGER)]
        self._count("Pod", "resize")
        return await self._call("PATCH", POD.path(namespace, name, "resize"), query, body, STRATEGIC)

    async def create(self, kind: Kind, namespace: str, body: Json) -> Json:
        """Create; 409 when it exists."""
        self._count(kind.kind, "create")
        return await self._call("POST", kind.path(namespace), [("fieldManager", names.FIELD_MANAGER)], body)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, grace: int | None = None) -> bool:
        """Delete this very object; False when it is gone or is another one by now."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        self._count(kind.kind, "delete")
        try:
            await self._call("DELETE", kind.path(namespace, name), body=body)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def served(self, kind: Kind) -> bool:
        """True where the cluster has this kind."""
        try:
            found = await self._call("GET", kind.group_path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(resource.get("name") == kind.plural for resource in found.get("resources") or ())

    async def _call(
        self,
        verb: str,
        path: str,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Json:
        headers = {"Accept": accept, "Content-Type": content_type}
        request = await self._client.param_serialize(
            verb, path, query_params=query or [], header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            answer = await self._client.call_api(*request, _request_timeout=REQUEST_SECONDS)
            raw = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiError(verb, path, 0, f"{type(error).__name__} {error}".strip()) from error
        parsed = _parse(raw)
        if not 200 <= answer.status <= 299:
            after = (answer.getheaders() or {}).get("Retry-After", "")
            message = str(parsed.get("message") or raw[:200].decode(errors="replace"))
            raise ApiError(verb, path, answer.status, message, float(after) if after.isdigit() else None)
        return parsed


def _parse(raw: bytes) -> Json:
    try:
        parsed = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
