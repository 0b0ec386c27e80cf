"""Who asks: API keys from a directory (file name = key's name), and the admin token. Knows no route."""

import hashlib
import hmac
import logging
from collections.abc import Mapping
from pathlib import Path

from carousel_server.failure import Failure

RELOAD_SECONDS = 2.0
logger = logging.getLogger(__name__)


class ApiKeys:
    """The keys of a directory, read again when it changes. None: everybody may ask, under the name ""."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._digests: Mapping[str, bytes] = {}
        self._read_at = float("-inf")

    @property
    def required(self) -> bool:
        return self._directory is not None

    def name_of(self, authorization: str | None, now: float) -> str:
        """The name of the key in an Authorization header. Raises Failure invalid_api_key."""
        if self._directory is None:
            return ""
        self._reload(now)
        key = bearer(authorization)
        if key is None:
            raise Failure("invalid_api_key", "This server needs an API key: send Authorization: Bearer <key>.")
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for name, known in self._digests.items():  # all of them: the time taken says nothing of the keys
            if hmac.compare_digest(digest, known):
                found = name
        if found is None:
            raise Failure("invalid_api_key", "The API key is not known to this server; check it or ask for one.")
        return found

    def _reload(self, now: float) -> None:
        if self._directory is None or now - self._read_at < RELOAD_SECONDS:
            return
        self._read_at = now
        digests = read_keys(self._directory)
        if digests.keys() != self._digests.keys():
            logger.info("API keys: %s", ", ".join(sorted(digests)) or "none; every request is refused")
        self._digests = digests


def read_keys(directory: Path) -> dict[str, bytes]:
    """Names to SHA-256 digests. Hidden files (a Secret's bookkeeping) and empty ones are no keys."""
    digests: dict[str, bytes] = {}
    try:
        files = sorted(directory.iterdir())
    except OSError as error:
        logger.warning("API keys cannot be read, every request is refused: %s", error)
        return digests
    for file in files:
        if file.name.startswith("."):
            continue
        try:
            key = file.read_bytes().strip()
        except OSError as error:
            logger.warning("the API key %s cannot be read: %s", file.name, error)
            continue
        if key:
            digests[file.name] = hashlib.sha256(key).digest()
    return digests


def bearer(authorization: str | None) -> str | None:
    """The token of `Bearer <token>`, None for anything else."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class AdminToken:
    """The admin port's token, read from its file each time: a rotated Secret counts at once."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> bytes | None:
        """None without a token."""
        try:
            return self._file.read_bytes().strip() or None
        except OSError:
            return None

    def check(self, authorization: str | None) -> None:
        """Raises Failure invalid_api_key."""
        token = self.read()
        if token is None:
            raise Failure("invalid_api_key", f"There is no admin token in {self._file}; put one there.")
        given = bearer(authorization)
        if given is None or not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token):
            raise Failure("invalid_api_key", "The admin port needs its token: send Authorization: Bearer <token>.")
