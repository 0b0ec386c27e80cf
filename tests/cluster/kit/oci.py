"""OCI image archives: what of the format the packer and the thin images need."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

Document = dict[str, Any]

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
GZIP_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Archive:
    """An OCI archive (a tar of a layout with one image), open for reading."""

    def __init__(self, path: Path) -> None:
        self._tar = tarfile.open(path)  # noqa: SIM115  # blobs are read from it as long as this object lives
        self._members = {m.name.removeprefix("./"): m for m in self._tar}
        index = json.loads(self._member("index.json").read())
        self.manifest: Document = self.document(index["manifests"][0]["digest"])
        self.config: Document = self.document(self.manifest["config"]["digest"])
        self.layers: list[Document] = self.manifest["layers"]
        self.diff_ids: list[str] = self.config["rootfs"]["diff_ids"]

    def _member(self, name: str) -> BinaryIO:
        stream = self._tar.extractfile(self._members[name])
        if stream is None:
            raise ValueError(f"{name} in the archive is not a file")
        return stream  # type: ignore[return-value]  # IO[bytes]

    def document(self, digest: str) -> Document:
        loaded: Document = json.loads(self.blob(digest).read())
        return loaded

    def blob(self, digest: str) -> BinaryIO:
        return self._member(blob_name(digest))


class Writer:
    """An OCI archive being written; blobs go straight into the file."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._written: set[str] = set()
        self._put("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')

    def _put(self, name: str, data: bytes) -> None:
        self.stream(name, io.BytesIO(data), len(data))

    def stream(self, name: str, source: BinaryIO, size: int) -> None:
        if name in self._written:
            return
        self._written.add(name)
        member = tarfile.TarInfo(name)
        member.size = size
        self._tar.addfile(member, source)

    def blob(self, descriptor: Document, source: BinaryIO) -> None:
        self.stream(blob_name(descriptor["digest"]), source, descriptor["size"])

    def document(self, content: Document, media_type: str) -> Document:
        data = json.dumps(content, sort_keys=True).encode()
        descriptor = {
            "mediaType": media_type,
            "digest": "sha256:" + hashlib.sha256(data).hexdigest(),
            "size": len(data),
        }
        self.blob(descriptor, io.BytesIO(data))
        return descriptor

    def image(self, tag: str, config: Document, layers: list[Document]) -> str:
        """Write config, manifest and index of an image whose layers are `layers`; returns the manifest's digest."""
        manifest = self.document(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self.document(config, CONFIG),
                "layers": layers,
            },
            MANIFEST,
        )
        manifest["annotations"] = {
            "io.containerd.image.name": tag,
            "org.opencontainers.image.ref.name": tag.rsplit(":", 1)[-1],
        }
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]}
        self._put("index.json", json.dumps(index).encode())
        return str(manifest["digest"])


@contextmanager
def new_archive(path: Path) -> Iterator[Writer]:
    """Write an archive beside `path` and move it there when it is whole."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with tarfile.open(unfinished, "w") as tar:
            yield Writer(tar)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def blob_name(digest: str) -> str:
    return "blobs/sha256/" + digest.removeprefix("sha256:")
