"""The samples of manifests/samples: InferenceServers that people start from. Data only; a test applies each."""

from dataclasses import dataclass
from typing import Any, Final

from carousel_server import __version__

SERVER_IMAGE: Final = f"localhost/carousel/server:{__version__}"
_DIGEST = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_HUB = {"hf": {"repo": "Qwen/Qwen3.8-Flash-Next-FP8", "revision": "main"}}


@dataclass(frozen=True)
class Sample:
    """One file. `needs` says what must be there before its pods can start."""

    file: str
    title: str
    needs: str
    name: str
    spec: dict[str, Any]


SAMPLES: Final[tuple[Sample, ...]] = (
    Sample(
        "embedded-cpu.yaml",
        "The tiny model of the image on the CPU: the whole path without a GPU.",
        "nothing",
        "tiny",
        {
            "model": {"source": {"embedded": {}}},
            "image": {"reference": SERVER_IMAGE},
            "gpu": {"none": True},
            "resources": {"cpu": "250m"},
            "drain": {"idleGrace": "5s"},
        },
    ),
    Sample(
        "embedded.yaml",
        "The tiny model on one nvidia.com/gpu, drained quickly: what `make demo` applies.",
        "a node with a free nvidia.com/gpu",
        "chat",
        {
            "model": {"source": {"embedded": {}}},
            "image": {"reference": SERVER_IMAGE},
            "resources": {"cpu": "250m"},
            "drain": {"idleGrace": "5s"},
        },
    ),
    Sample(
        "hub.yaml",
        "The FP8 checkpoint from the Hugging Face Hub, downloaded once into a claim of each pod.",
        "a default storage class, a node with 180 GiB of free memory and a GPU of 80 GiB or more",
        "flash",
        {
            "model": {"source": _HUB, "preset": "qwen3.8-flash-next-fp8", "servedName": "qwen3.8-flash-next"},
            "image": {"reference": SERVER_IMAGE},
            "cache": {"perReplica": {"size": "200Gi"}},
            "resources": {"cpu": 8},
            "startup": {"timeout": "1h"},
        },
    ),
    Sample(
        "gated-hub.yaml",
        "The same from a gated repository, with a token.",
        "a Secret hub-token with the key token, and what hub.yaml needs",
        "flash-gated",
        {
            "model": {
                "source": {"hf": {**_HUB["hf"], "tokenSecretRef": {"name": "hub-token"}}},
                "preset": "qwen3.8-flash-next-fp8",
            },
            "image": {"reference": SERVER_IMAGE},
            "cache": {"perReplica": {"size": "200Gi"}},
            "resources": {"cpu": 8},
            "startup": {"timeout": "1h"},
        },
    ),
    Sample(
        "claim.yaml",
        "A checkpoint in a folder of an existing claim, on two pods; sizes from hostMemory instead of a preset.",
        "a claim named models that pods of several nodes can read",
        "from-claim",
        {
            "model": {"source": {"pvc": {"claimName": "models", "path": "qwen3.8-flash-next-fp8"}}},
            "image": {"reference": SERVER_IMAGE},
            "replicas": 2,
            "resources": {"cpu": 8, "hostMemory": "192Gi", "sharedMemory": "1Gi"},
        },
    ),
    Sample(
        "image-volume.yaml",
        "A checkpoint packed as an image and mounted as a volume; the digest makes it the same on every pod.",
        "an image of the model under this digest",
        "from-image",
        {
            "model": {
                "source": {"oci": {"reference": f"localhost/carousel/tiny-model@{_DIGEST}"}},
                "preset": "tiny",
            },
            "image": {"reference": SERVER_IMAGE},
            "gpu": {"none": True},
        },
    ),
    Sample(
        "mig.yaml",
        "A slice of a GPU by its resource name.",
        "a node that advertises nvidia.com/mig-1g.18gb",
        "sliced",
        {
            "model": {"source": {"embedded": {}}},
            "image": {"reference": SERVER_IMAGE},
            "gpu": {"resourceName": "nvidia.com/mig-1g.18gb"},
        },
    ),
    Sample(
        "device-claim.yaml",
        "A GPU by dynamic resource allocation.",
        "a DRA driver with the device class gpu.nvidia.com",
        "claimed",
        {
            "model": {"source": {"embedded": {}}},
            "image": {"reference": SERVER_IMAGE},
            "gpu": {
                "claim": {
                    "deviceClassName": "gpu.nvidia.com",
                    "selectors": ["device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0"],
                }
            },
        },
    ),
    Sample(
        "team.yaml",
        "Three pods for a team: keys, a network policy, spread over nodes, metrics, long drains.",
        "a Secret chat-keys (each key is an API key), three nodes with GPUs",
        "team",
        {
            "model": {"source": {"embedded": {}}, "servedName": "team-chat"},
            "image": {"reference": SERVER_IMAGE},
            "replicas": 3,
            "limits": {"activeRequests": 8, "sessions": {"count": 256, "idle": "1h"}},
            "drain": {"sessionTimeout": "30m", "requestTimeout": "5m"},
            "auth": {"apiKeysSecretRef": {"name": "chat-keys"}},
            "networkPolicy": {
                "enabled": True,
                "from": [{"namespaceSelector": {"matchLabels": {"team": "chat"}}}],
            },
            "monitoring": {"podMonitor": True},
            "pod": {
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
                ],
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            },
        },
    ),
    Sample(
        "every-field.yaml",
        "Every field once, for looking things up; no defaults are left out.",
        "what its fields name: Secrets, a ConfigMap, a runtime class, a priority class",
        "every-field",
        {
            "model": {
                "source": {
                    "hf": {
                        "repo": "Qwen/Qwen3.8-Flash-Next-BF16",
                        "revision": "refs/pr/1",
                        "tokenSecretRef": {"name": "hub-token", "key": "token"},
                    }
                },
                "preset": "qwen3.8-flash-next-bf16",
                "servedName": "qwen/flash:bf16",
            },
            "image": {"reference": SERVER_IMAGE, "pullPolicy": "IfNotPresent", "pullSecrets": ["registry"]},
            "replicas": 2,
            "suspend": False,
            "gpu": {"resourceName": "nvidia.com/gpu"},
            "limits": {
                "activeRequests": 8,
                "queuedRequests": 32,
                "maxOutputTokens": 8192,
                "sessions": {"count": 128, "bytes": "512Mi", "idle": "30m"},
                "prefixCache": {"count": 32, "bytes": "16Gi", "idle": "30m"},
                "checkpointBytes": "8Gi",
                "requestBytes": "8Mi",
                "responseBytes": "8Mi",
                "socketTimeout": "1m",
            },
            "engine": {
                "contextTokens": 65536,
                "prefillChunk": 4096,
                "expertPoolBytes": "24Gi",
                "gpuStateSlots": 4,
                "drafts": 2,
                "weights": "bf16",
                "outputQueueBytes": "1Mi",
                "headerTimeout": "15s",
                "extraArgs": ["--no-access-log"],
            },
            "resources": {"cpu": "7500m", "hostMemory": "400Gi", "sharedMemory": "1Gi", "ephemeralStorage": "4Gi"},
            "drain": {"sessionTimeout": "10m", "requestTimeout": "2m", "idleGrace": "2m", "policy": "WaitForSessions"},
            "startup": {"timeout": "2h"},
            "restart": {"id": "1", "reason": "a first look"},
            "cache": {"perReplica": {"size": "400Gi", "storageClassName": "fast"}},
            "pod": {
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
                "tolerations": [
                    {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
                    {"key": "down", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
                ],
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
                                    "matchFields": [
                                        {"key": "metadata.name", "operator": "NotIn", "values": ["node-9"]}
                                    ],
                                }
                            ]
                        },
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "weight": 10,
                                "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
                            }
                        ],
                    },
                    "podAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "weight": 1,
                                "podAffinityTerm": {
                                    "topologyKey": "topology.kubernetes.io/zone",
                                    "labelSelector": {"matchLabels": {"app": "client"}},
                                    "namespaceSelector": {"matchLabels": {"team": "chat"}},
                                },
                            }
                        ]
                    },
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "topologyKey": "kubernetes.io/hostname",
                                "labelSelector": {
                                    "matchExpressions": [{"key": "noisy", "operator": "In", "values": ["yes"]}]
                                },
                                "namespaces": ["default"],
                            }
                        ]
                    },
                },
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "topology.kubernetes.io/zone",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"carousel.dev/inferenceserver": "every-field"}},
                        "minDomains": 2,
                        "nodeAffinityPolicy": "Honor",
                        "nodeTaintsPolicy": "Ignore",
                    }
                ],
                "runtimeClassName": "nvidia",
                "priorityClassName": "chat",
                "labels": {"team": "chat"},
                "annotations": {"example.com/owner": "chat"},
                "serviceAccountName": "chat",
                "env": [
                    {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
                    {"name": "HF_ENDPOINT", "valueFrom": {"configMapKeyRef": {"name": "hub", "key": "endpoint"}}},
                    {
                        "name": "EXTRA",
                        "valueFrom": {"secretKeyRef": {"name": "extra", "key": "value", "optional": True}},
                    },
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
                "envFrom": [
                    {"prefix": "A_", "secretRef": {"name": "extra", "optional": True}},
                    {"configMapRef": {"name": "settings", "optional": True}},
                ],
                "securityContext": {
                    "runAsUser": 1000,
                    "runAsGroup": 1000,
                    "fsGroup": 1000,
                    "fsGroupChangePolicy": "Always",
                    "supplementalGroups": [2000],
                    "seLinuxOptions": {"level": "s0:c123,c456", "role": "r", "type": "t", "user": "u"},
                },
            },
            "service": {"port": 80, "annotations": {"example.com/scheme": "internal"}, "type": "NodePort"},
            "auth": {"apiKeysSecretRef": {"name": "chat-keys"}},
            "networkPolicy": {
                "enabled": True,
                "from": [
                    {"podSelector": {"matchLabels": {"app": "client"}}},
                    {"namespaceSelector": {"matchLabels": {"team": "chat"}}},
                    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
                ],
            },
            "monitoring": {"podMonitor": True},
        },
    ),
)
