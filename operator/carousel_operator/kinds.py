"""The kinds that the operator reads and writes, and where the API server keeps them."""

from dataclasses import dataclass

from carousel_operator import names


@dataclass(frozen=True)
class Kind:
    """One kind of object and its path."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group_path(self) -> str:
        """`/api/v1` or `/apis/apps/v1`."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """The path of a list, an object or its subresource; namespace None means all of them."""
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        parts = [part for part in (self.plural, name, subresource) if part]
        return f"{self.group_path}{scope}/{'/'.join(parts)}"


SERVER = Kind(names.API_VERSION, names.KIND, names.PLURAL)
POD = Kind("v1", "Pod", "pods")
NODE = Kind("v1", "Node", "nodes", namespaced=False)
SERVICE = Kind("v1", "Service", "services")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SECRET = Kind("v1", "Secret", "secrets")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENT = Kind("v1", "Event", "events")
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD_MONITOR = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
CLAIM_TEMPLATE = Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)

CHILDREN = (CONFIG_MAP, SECRET, SERVICE, CLAIM_TEMPLATE, STATEFUL_SET, BUDGET, NETWORK_POLICY, POD_MONITOR)
BY_KIND = {kind.kind: kind for kind in (SERVER, POD, NODE, CLAIM, EVENT, LEASE, CRD, *CHILDREN)}
