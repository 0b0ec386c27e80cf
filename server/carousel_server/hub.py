"""Downloads of one repository from a Hugging Face Hub: what there is, what is missing here, and getting it.

Resumable at any byte, verified against the hub's own digests, and silent about nothing: every failure says what to do.
Free of torch and of the hub's client library.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import httpx

from carousel_server.units import human_bytes

T = TypeVar("T")
WANTED = (".json", ".jinja", ".safetensors", ".txt", ".model")
MARKER = ".carousel-complete.json"
CHUNK = 2**20
TRIES_WITHOUT_PROGRESS = 8  # waits of 1, 2, 4 ... 30 s: a hub that is away for two minutes is waited for
CONNECTIONS = 4


class HubError(Exception):
    """The model cannot be fetched; the text says why and what to do."""


class _Again(Exception):
    """A request that may succeed when it is made again."""


@dataclass(frozen=True)
class HubFile:
    """A file of the repository. `sha256` is set for large files, `blob` (a git id) for the others."""

    name: str
    size: int
    sha256: str = ""
    blob: str = ""


@dataclass(frozen=True)
class Listing:
    """The files of one commit that a server needs."""

    commit: str
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(file.size for file in self.files)


class Progress(Protocol):
    """Told of every piece; `done` and `total` are bytes."""

    def __call__(self, done: int, total: int, name: str) -> None: ...


def parse_listing(answer: Any) -> Listing:
    """From the hub's JSON about a revision with `blobs=true`. Raises HubError when it is no such thing."""
    try:
        files = []
        for entry in answer["siblings"]:
            name = str(entry["rfilename"])
            if "/" in name or name.startswith(".") or not name.endswith(WANTED):
                continue
            large = entry.get("lfs") or {}
            digest = str(large.get("sha256", ""))
            size = int(large["size"] if large else entry["size"])
            files.append(HubFile(name, size, digest, "" if digest else str(entry.get("blobId") or "")))
        commit = str(answer["sha"])
    except (KeyError, TypeError, ValueError) as error:
        raise HubError(f"the hub's answer about the repository cannot be read: {error!r}") from error
    if not any(file.name == "config.json" for file in files):
        raise HubError("the repository has no config.json at its top: it is no checkpoint in the transformers layout")
    return Listing(commit, tuple(files))


def complete(folder: Path, repo: str, revision: str) -> bool:
    """True when an earlier download into this folder ended and its files are there; asks nobody."""
    try:
        marker = json.loads((folder / MARKER).read_text())
        if (marker["repo"], marker["revision"]) != (repo, revision):
            return False
        return all((folder / name).stat().st_size == size for name, size in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


class Hub:
    """One repository at one endpoint."""

    def __init__(
        self,
        endpoint: str,
        repo: str,
        revision: str,
        token: str = "",
        *,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.endpoint, self.repo, self.revision = endpoint.rstrip("/"), repo, revision
        headers = {"User-Agent": "carousel-fetch", **({"Authorization": f"Bearer {token}"} if token else {})}
        time_out = httpx.Timeout(30.0, connect=10.0)
        self._http = httpx.Client(headers=headers, timeout=time_out, follow_redirects=True, transport=transport)
        self._sleep = sleep
        self._stop = threading.Event()

    def listing(self) -> Listing:
        """What the revision holds. Raises HubError."""
        url = f"{self.endpoint}/api/models/{self.repo}/revision/{quote(self.revision, safe='')}?blobs=true"

        def ask() -> Listing:
            with self._open(url) as answer:
                answer.read()
                return parse_listing(answer.json())

        return self._patiently(ask, lambda: 0)

    def download(self, listing: Listing, folder: Path, progress: Progress) -> None:
        """Every missing file, several at a time, then the marker. Raises HubError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            missing = [file for file in listing.files if not _there(folder / file.name, file)]
            self._check_space(folder, missing)
            count = _Count(listing, {file.name for file in missing}, progress)
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                files = [pool.submit(self._file, listing.commit, file, folder, count) for file in missing]
                try:
                    for file_done in as_completed(files):
                        file_done.result()
                except BaseException:
                    self._stop.set()  # the others end at their next piece
                    raise
            marker = {
                "repo": self.repo,
                "revision": self.revision,
                "commit": listing.commit,
                "files": {file.name: file.size for file in listing.files},
            }
            (folder / f"{MARKER}.part").write_text(json.dumps(marker, indent=1))
            (folder / f"{MARKER}.part").replace(folder / MARKER)
        except OSError as error:
            raise HubError(f"cannot write to {folder}: {error.strerror}; a download needs a writable cache") from error

    def _check_space(self, folder: Path, missing: list[HubFile]) -> None:
        need = sum(file.size - _size(folder / f"{file.name}.part") for file in missing)
        free = shutil.disk_usage(folder).free
        if need > free:
            raise HubError(
                f"{self.repo} needs {human_bytes(need)} more in {folder}, which has {human_bytes(free)} free: "
                "enlarge the cache (cache.perReplica.size)"
            )

    def _file(self, commit: str, file: HubFile, folder: Path, count: "_Count") -> None:
        part = folder / f"{file.name}.part"
        url = f"{self.endpoint}/{self.repo}/resolve/{commit}/{quote(file.name)}"

        def get() -> None:
            have = min(_size(part), file.size)
            count.set(file.name, have)
            if have < file.size:
                with self._open(url, have) as answer, part.open("ab" if answer.status_code == 206 else "wb") as out:
                    have = out.tell()
                    for piece in answer.iter_raw():
                        if self._stop.is_set():
                            return
                        out.write(piece)
                        have += len(piece)
                        count.set(file.name, have)
            _verify(part, file)
            part.replace(folder / file.name)

        self._patiently(get, lambda: _size(part))

    @contextmanager
    def _open(self, url: str, start: int = 0) -> Iterator[httpx.Response]:
        """A streamed answer of 200 or 206. Raises HubError for what stays so, _Again for what may pass."""
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
        try:
            with self._http.stream("GET", url, headers=headers) as answer:
                if answer.status_code in (401, 403):
                    raise HubError(
                        f"{self.endpoint} refuses {self.repo} with {answer.status_code}: it is gated or private; name "
                        "a Secret with a token that may read it in model.source.hf.tokenSecretRef"
                    )
                if answer.status_code == 404:
                    raise HubError(f"{self.endpoint} has no {self.repo} at revision {self.revision}: correct the name")
                if answer.status_code not in (200, 206):
                    raise _Again(f"{answer.status_code} {answer.reason_phrase}")
                yield answer
        except httpx.HTTPError as error:
            raise _Again(f"{type(error).__name__} {error}".strip()) from error

    def _patiently(self, call: Callable[[], T], have: Callable[[], int]) -> T:
        """Call until it succeeds; gives up after many failures in a row that brought no byte."""
        failures, before = 0, have()
        while not self._stop.is_set():
            try:
                return call()
            except _Again as error:
                failures = 1 if have() > before else failures + 1
                before = have()
                if failures >= TRIES_WITHOUT_PROGRESS:
                    raise HubError(
                        f"{self.endpoint} cannot be reached: {error} ({failures} tries in a row). Without a way out of "
                        "the cluster set HF_ENDPOINT in pod.env to a mirror, or use model.source.pvc or oci"
                    ) from error
                self._sleep(min(30.0, 2.0 ** (failures - 1)))
        raise HubError("stopped, because another file failed")


class _Count:
    """Bytes of all files that are here, from several threads."""

    def __init__(self, listing: Listing, missing: set[str], progress: Progress) -> None:
        self._have = {file.name: 0 if file.name in missing else file.size for file in listing.files}
        self._total, self._progress, self._lock = listing.size, progress, threading.Lock()
        progress(sum(self._have.values()), self._total, "")

    def set(self, name: str, have: int) -> None:
        """This file now has so many bytes."""
        with self._lock:
            self._have[name] = have
            self._progress(sum(self._have.values()), self._total, name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _there(path: Path, file: HubFile) -> bool:
    """Files get their final name only after they were verified, so the size is enough."""
    return path.exists() and _size(path) == file.size


def _verify(part: Path, file: HubFile) -> None:
    """Raises _Again, with the file emptied, when the content is not what the hub said."""
    size = _size(part)
    if size < file.size:
        raise _Again(f"{file.name} ended after {size} of {file.size} bytes")
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with part.open("rb") as content:
        while piece := content.read(CHUNK):
            digest.update(piece)
    expected = file.sha256 or file.blob
    if size != file.size or (expected and digest.hexdigest() != expected):
        os.truncate(part, 0)
        raise _Again(f"{file.name} is damaged: {size} bytes, digest {digest.hexdigest()[:12]}, not {expected[:12]}")
