"""Volumes made by hand, as where nobody provisions them: a storage class, and folders of this machine."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.kube import CLUSTER_DIR, Namespace

LABEL = "carousel.dev/test-volumes"


class Volumes:
    """The volumes of one namespace; `storage_class` binds a claim when its first pod has a node."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.storage_class = namespace.name
        self.folder = CLUSTER_DIR / "volumes" / namespace.name

    def add(self, name: str, *, node: str = "node-1") -> Path:
        """A volume on this node, and its folder: both nodes are this machine."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        self.namespace.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{self.storage_class}-{name}", "labels": {LABEL: self.storage_class}},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
                    "storageClassName": self.storage_class,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "local": {"path": str(folder)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
                },
            }
        )
        return folder

    def claim(self, name: str, volume: str) -> None:
        """A claim of this volume."""
        spec = {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": self.storage_class,
            "volumeName": f"{self.storage_class}-{volume}",
            "resources": {"requests": {"storage": "1Mi"}},
        }
        self.namespace.apply(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
        )

    def clear(self) -> None:
        """Take away what is there, an earlier run's too; a volume that is still claimed goes with its claim."""
        cluster = self.namespace.cluster
        cluster.kubectl("delete", "persistentvolumes", "-l", f"{LABEL}={self.storage_class}", "--wait=false")
        cluster.kubectl("delete", "storageclass", self.storage_class, "--ignore-not-found")
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def volumes_of(namespace: Namespace) -> Iterator[Volumes]:
    """The storage class of a new namespace; nothing of it is left after."""
    found = Volumes(namespace)
    found.clear()
    storage_class: dict[str, Any] = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": found.storage_class},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    namespace.apply(storage_class)
    try:
        yield found
    finally:
        found.clear()
