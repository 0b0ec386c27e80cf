"""Every label, annotation, condition, reason, event and metric of the operator: closed lists, one line of docs each.

docs/reference/inferenceserver.md prints these tables; a test holds that nothing else is used.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from carousel_operator.spec_fields import GpuClaim

GROUP: Final = "carousel.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceServer"
PLURAL: Final = "inferenceservers"
SINGULAR: Final = "inferenceserver"
SHORT_NAME: Final = "infsrv"
CATEGORY: Final = "inference"

FIELD_MANAGER: Final = "carousel-operator"  # of server-side apply, on children and on status
COMPONENT: Final = "carousel-server"  # app.kubernetes.io/name of every child
OPERATOR_COMPONENT: Final = "carousel-operator"  # app.kubernetes.io/name of the operator's own pod
CONTAINER: Final = "server"
FETCH_CONTAINER: Final = "fetch-model"
CLIENT_PORT: Final = 8000
ADMIN_PORT: Final = 8001

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_SERVER: Final = f"{GROUP}/inferenceserver"
LABEL_REVISION: Final = f"{GROUP}/revision"

LABELS: Final[Mapping[str, str]] = {
    LABEL_NAME: f"`{COMPONENT}` on every child.",
    LABEL_INSTANCE: "Name of the InferenceServer.",
    LABEL_COMPONENT: "`server` on every child.",
    LABEL_MANAGED_BY: f"`{FIELD_MANAGER}` on every child.",
    LABEL_SERVER: "Name of the InferenceServer; what Services, the PodDisruptionBudget and the watch select.",
    LABEL_REVISION: "On pods: the revision that the pod was made from.",
}

ANNOTATION_DRAIN: Final = f"{GROUP}/drain"
ANNOTATION_PREVIEW: Final = f"{GROUP}/preview"
ANNOTATION_SCHEMA: Final = f"{GROUP}/schema"
ANNOTATION_APPLIED: Final = f"{GROUP}/applied"
ANNOTATION_SPEC: Final = f"{GROUP}/spec"
ANNOTATION_TEMPLATE: Final = f"{GROUP}/template"
ANNOTATION_RESTART: Final = f"{GROUP}/restart-id"
ANNOTATION_SECRETS: Final = f"{GROUP}/secrets"
ANNOTATION_RESIZE_REFUSED: Final = f"{GROUP}/resize-refused"
ANNOTATION_DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"

ANNOTATIONS: Final[Mapping[str, str]] = {
    ANNOTATION_DRAIN: "On a pod: JSON with reason, startedAt and deadline of its drain; survives an operator restart.",
    ANNOTATION_PREVIEW: '`"true"` on an InferenceServer: changes are shown in status.change and not carried out.',
    ANNOTATION_SCHEMA: "On the CRD: digest of the schema; the operator compares it with its own at start.",
    ANNOTATION_APPLIED: "On a child: digest of what was applied last, so that an unchanged child is not written again.",
    ANNOTATION_SPEC: "On the StatefulSet: the spec its template was made from, to say what a change changes.",
    ANNOTATION_TEMPLATE: "On pods: version of the operator's pod template.",
    ANNOTATION_RESTART: "On pods: the spec.restart.id that the pod was made with.",
    ANNOTATION_SECRETS: "On pods: digest of the Secret keys that their environment refers to.",
    ANNOTATION_RESIZE_REFUSED: "On a pod: why its in-place resize is not possible; it is replaced instead.",
    ANNOTATION_DO_NOT_DISRUPT: "On a pod that pulls, downloads or loads: no autoscaler may move it; gone when ready.",
}

READY: Final = "Ready"
AVAILABLE: Final = "Available"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
MODEL_AVAILABLE: Final = "ModelAvailable"
MEMORY_PLAN_SKEW: Final = "MemoryPlanSkew"

CONDITIONS: Final[Mapping[str, str]] = {
    READY: "All wanted pods serve the current revision and the latest generation.",
    AVAILABLE: "At least one pod accepts requests.",
    PROGRESSING: "A change is being carried out; False with NewRevisionFailing when it has stopped.",
    DEGRADED: "Something is wrong that does not mend itself, or did not yet.",
    MODEL_AVAILABLE: "The model's files are in place.",
    MEMORY_PLAN_SKEW: "A running server plans other totals than the operator; both tables are in the message.",
}

REASONS: Final[Mapping[str, str]] = {
    "WaitingForGPU": "A pod is Pending because no node has the free device, memory or CPU it asks for.",
    "PullingImage": "A node is pulling the server's image or the model's image volume.",
    "DownloadingModel": "The init container is filling the model cache; the message has the progress.",
    "LoadingModel": "The server process is up and loading weights; the message has the progress.",
    "Serving": "Requests are answered.",
    "Draining": "Pods accept no new sessions and wait for the live ones; the message has counts and the deadline.",
    "RollingOut": "Pods are being replaced by a new revision, one at a time.",
    "Resizing": "CPU or memory of running pods is being changed in place.",
    "Suspended": "spec.suspend is true: no pods are kept.",
    "CrashLooping": "A server container exits again and again; the message has the exit code and its meaning.",
    "HostOutOfMemory": "A container was killed for memory; the message has its limit, status.memory the plan.",
    "GPUOutOfMemory": "The server ran out of GPU memory after its start (exit 71).",
    "GPUUnhealthy": "The device is unhealthy or CUDA failed (exit 70); the pod is deleted to get another one.",
    "NodeLost": "A pod's node does not answer; the pod is reported, never forced.",
    "SecretMissing": "A Secret or a key that the spec names does not exist.",
    "ModelMissing": "The model's files are missing or faulty (exit 66), or its claim or repository does not exist.",
    "ImagePullFailed": "An image cannot be pulled; the message has the registry's answer.",
    "InvalidSpec": "The spec cannot be carried out, or the server refused its settings (exit 64).",
    "LimitsDoNotFit": "The memory plan exceeds the host memory or the GPU (exit 78); the message has the numbers.",
    "AdminUnreachable": "A pod's admin port does not answer; its sessions are unknown and count as busy.",
    "NewRevisionFailing": "The first pod of a new revision does not become ready; the rollout has stopped.",
}

EVENTS: Final[Mapping[str, str]] = {
    "Ready": "The server became Ready.",
    "NotReady": "The server stopped being Ready, or a fault keeps it from it; the message has the reason.",
    "DrainStarted": "A pod began to drain.",
    "DrainFinished": "A pod has drained and goes.",
    "DrainForced": "A pod's deadline came with sessions or requests left; the message has the counts.",
    "DrainUndone": "A draining pod is wanted again.",
    "SessionsLost": "A boot ended with its sessions; the message has the cause, and how fresh the count is.",
    "LimitsApplied": "Every pod runs with the new limits.",
    "LimitsDeferred": "Pods could not take the new limits for 5 minutes.",
    "ResizeRefused": "An in-place resize is not possible; it becomes a restart.",
    "RolloutStarted": "A new revision is being rolled out.",
    "RolloutFinished": "All pods run the desired revision.",
    "RolloutStopped": "A new revision is failing and the rollout has stopped.",
    "ChildRepaired": "A child was edited or deleted by someone else and was put right.",
    "PodMonitorMissing": "spec.monitoring asks for a PodMonitor but the cluster has no such kind.",
    "InvalidSpec": "The spec cannot be carried out.",
}

METRICS: Final[Mapping[str, str]] = {
    "carousel_operator_reconciles_total": "Reconciles by `outcome` (ok, retry, error).",
    "carousel_operator_reconcile_seconds": "Histogram: duration of a reconcile.",
    "carousel_operator_errors_total": "Failed reconciles by `kind` of error.",
    "carousel_operator_queue_depth": "Keys that wait for a reconcile.",
    "carousel_operator_writes_total": "Writes to the API server by `kind` and `verb`.",
    "carousel_operator_admin_calls_total": "Calls of pods' admin ports by `call` and `outcome`.",
    "carousel_operator_drains_total": "Drains by `reason` and `outcome` (quiet, deadline, undone, nothing).",
    "carousel_operator_lost_boots_total": "Lost boots by `cause`, each counted once.",
    "carousel_operator_lost_sessions_total": "Sessions that were lost, by `cause`.",
    "carousel_operator_servers": "InferenceServer objects by `ready`.",
    "carousel_operator_other_operators": "Other operators seen writing the same objects; should be 0.",
}


def config_map(name: str) -> str:
    """Name of the ConfigMap with server.toml and peers.json."""
    return f"{name}-config"


def admin_secret(name: str) -> str:
    """Name of the Secret with the admin token."""
    return f"{name}-admin"


def headless_service(name: str) -> str:
    """Name of the Service that gives each pod its own address."""
    return f"{name}-pods"


def claim_template(name: str, claim: "GpuClaim") -> str:
    """Name of the ResourceClaimTemplate of one claim; another claim gets another name."""
    digest = hashlib.sha256(claim.model_dump_json().encode()).hexdigest()
    return f"{name}-gpu-{digest[:8]}"


def selector(name: str) -> dict[str, str]:
    """Labels that select the pods of one InferenceServer; never changes (a StatefulSet's selector is immutable)."""
    return {LABEL_NAME: COMPONENT, LABEL_SERVER: name}


def labels(name: str) -> dict[str, str]:
    """Labels of every child of one InferenceServer."""
    return selector(name) | {LABEL_INSTANCE: name, LABEL_COMPONENT: "server", LABEL_MANAGED_BY: FIELD_MANAGER}
