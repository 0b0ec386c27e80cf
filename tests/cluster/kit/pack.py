#!/usr/bin/env python3
"""Pack folders into an OCI image archive, one layer a folder, without a daemon, a registry or privileges.

The same folders give the same image: files keep their modes, belong to root unless --keep-owner is given, and are
dated 1970.
"""

import argparse
import gzip
import hashlib
import json
import platform
import tarfile
import tempfile
from pathlib import Path
from typing import Protocol

from oci import GZIP_LAYER, Archive, Document, new_archive

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> object: ...


class Hashing:
    """A sink that counts and hashes what passes through to another sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._sha, self.size = sink, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self._sha.update(data)
        self.size += len(data)
        return self._sink.write(data)

    def flush(self) -> None:
        self._sink.flush()

    @property
    def digest(self) -> str:
        return "sha256:" + self._sha.hexdigest()


def pack_layer(folder: Path, sink: Sink, keep_owner: bool) -> tuple[str, Document]:
    """Write `folder` as a gzipped tar to `sink`; returns the tar's digest (diff id) and the layer's descriptor."""

    def normal(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.ischr() or member.isblk():
            return None
        if not keep_owner:
            member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = 0
        return member

    outer = Hashing(sink)
    with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=outer, mtime=0) as packed:
        inner = Hashing(packed)
        with tarfile.open(fileobj=inner, mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 20) as tar:  # type: ignore[call-overload]
            for entry in sorted(folder.iterdir()):
                tar.add(entry, arcname=entry.name, filter=normal)
    return inner.digest, {"mediaType": GZIP_LAYER, "digest": outer.digest, "size": outer.size}


def settings(config: Document, arguments: argparse.Namespace) -> None:
    inner = config.setdefault("config", {})
    given = {entry.split("=", 1)[0] for entry in arguments.env}
    inner["Env"] = [e for e in inner.get("Env") or [PATH] if e.split("=", 1)[0] not in given] + arguments.env
    if arguments.workdir:
        inner["WorkingDir"] = arguments.workdir
    if arguments.user:
        inner["User"] = arguments.user
    if arguments.entrypoint is not None:
        inner["Entrypoint"] = arguments.entrypoint
        inner.pop("Cmd", None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base", type=Path, help="an archive whose layers come first and whose settings are inherited")
    parser.add_argument("--layer", type=Path, action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--workdir")
    parser.add_argument("--user")
    parser.add_argument("--entrypoint", type=json.loads, help='a JSON list: ["python3", "main.py"]')
    parser.add_argument("--keep-owner", action="store_true")
    arguments = parser.parse_args()

    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    config: Document = {"architecture": machine, "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}
    layers: list[Document] = []
    with new_archive(arguments.out) as out:
        if arguments.base:
            base = Archive(arguments.base)
            config = {key: value for key, value in base.config.items() if key != "history"}
            layers = list(base.layers)
            for layer in layers:
                out.blob(layer, base.blob(layer["digest"]))
        for folder in arguments.layer:
            with tempfile.TemporaryFile(dir=arguments.out.parent) as packed:
                diff_id, layer = pack_layer(folder, packed, arguments.keep_owner)
                packed.seek(0)
                out.blob(layer, packed)
            config["rootfs"]["diff_ids"].append(diff_id)
            layers.append(layer)
        settings(config, arguments)
        digest = out.image(arguments.tag, config, layers)
    print(arguments.tag, digest, arguments.out.stat().st_size)


if __name__ == "__main__":
    main()
