"""How a model's files reach the server: volumes, mounts, an init container and the value of --model. Pure."""

from dataclasses import dataclass, field
from typing import Any

from carousel_server.units import format_bytes

from carousel_operator import names
from carousel_operator.resource import InferenceServerSpec
from carousel_operator.spec_fields import Cache, HfSource

MODELS = "/models"
CACHE = "/cache"
HUB_TOKEN_DIR = "/var/run/carousel/hub-token"
CACHE_VOLUME = "cache"

Object = dict[str, Any]


@dataclass(frozen=True)
class ModelFiles:
    """What the pod needs for its model."""

    model: str  # value of --model
    volumes: list[Object] = field(default_factory=list)
    mounts: list[Object] = field(default_factory=list)  # of the server's container
    claim_templates: list[Object] = field(default_factory=list)
    fetch: Object | None = None  # command and mounts of the init container
    kernel_cache: str = "/tmp/kernels"  # where compiled kernels go


def model_files(spec: InferenceServerSpec) -> ModelFiles:
    """For any of the four sources. The model is always mounted read-only; only the cache can be written."""
    source = spec.model.source
    volumes, claims = _cache(spec.cache, needed=source.hf is not None)
    writable = bool(volumes or claims) and not (spec.cache and spec.cache.claim and spec.cache.claim.read_only)
    mounts: list[Object] = [{"name": CACHE_VOLUME, "mountPath": CACHE}] if writable else []
    kernel_cache = f"{CACHE}/kernels" if writable else "/tmp/kernels"
    model, fetch = "embedded", None
    if source.pvc:
        volumes.append(
            {"name": "model", "persistentVolumeClaim": {"claimName": source.pvc.claim_name, "readOnly": True}}
        )
        mounts.append({"name": "model", "mountPath": MODELS, "readOnly": True})
        model = f"{MODELS}/{source.pvc.path}".rstrip("/")
    elif source.oci:
        volumes.append(
            {"name": "model", "image": {"reference": source.oci.reference, "pullPolicy": spec.image.pull_policy}}
        )
        mounts.append({"name": "model", "mountPath": MODELS, "readOnly": True})
        model = MODELS
    elif source.hf:
        mounts.append({"name": CACHE_VOLUME, "mountPath": MODELS, "readOnly": True})
        model = f"{MODELS}/{_folder(source.hf)}"
        fetch = _fetch(source.hf, writable=writable)
        if source.hf.token_secret_ref:
            secret = source.hf.token_secret_ref
            items = [{"key": secret.key, "path": "token"}]
            volumes.append({"name": "hub-token", "secret": {"secretName": secret.name, "items": items}})
    return ModelFiles(model, volumes, mounts, claims, fetch, kernel_cache)


def _folder(source: HfSource) -> str:
    """One folder a repository and revision, so that a changed revision never mixes with the old files."""
    return f"hub/{source.repo.replace('/', '--')}/{source.revision.replace('/', '--')}"


def _fetch(source: HfSource, *, writable: bool) -> Object:
    command = ["carousel-server", "fetch", "--repo", source.repo, "--revision", source.revision]
    command += ["--dest", f"{MODELS}/{_folder(source)}", "--admin-port", str(names.ADMIN_PORT)]
    mounts: list[Object] = [{"name": CACHE_VOLUME, "mountPath": MODELS, **({} if writable else {"readOnly": True})}]
    if source.token_secret_ref:
        command += ["--token-file", f"{HUB_TOKEN_DIR}/token"]
        mounts.append({"name": "hub-token", "mountPath": HUB_TOKEN_DIR, "readOnly": True})
    return {"command": command, "volumeMounts": mounts}


def _cache(cache: Cache | None, *, needed: bool) -> tuple[list[Object], list[Object]]:
    """Volumes and claim templates of the cache; an emptyDir when one is needed and none is asked for."""
    if cache and cache.per_replica:
        want = cache.per_replica
        claim: Object = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": format_bytes(want.size)}},
        }
        if want.storage_class_name:
            claim["storageClassName"] = want.storage_class_name
        return [], [{"metadata": {"name": CACHE_VOLUME}, "spec": claim}]
    if cache and cache.claim:
        source: Object = {"claimName": cache.claim.claim_name}
        if cache.claim.read_only:
            source["readOnly"] = True
        return [{"name": CACHE_VOLUME, "persistentVolumeClaim": source}], []
    if cache and cache.ephemeral and cache.ephemeral.size_limit is not None:
        limit = format_bytes(cache.ephemeral.size_limit)
        return [{"name": CACHE_VOLUME, "emptyDir": {"sizeLimit": limit}}], []
    return ([{"name": CACHE_VOLUME, "emptyDir": {}}], []) if needed or cache else ([], [])
