"""What the server is at: loading, or serving with a core behind it. The routes of both ports ask here first."""

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from carousel_server.failure import Failure
from carousel_server.prepare import Preparer
from carousel_server.service import Service
from carousel_server.turn import Settings


class Core(Service, Protocol):
    """The core as the ports see it: the service, and what the operator and Prometheus ask."""

    @property
    def ordinal(self) -> int: ...

    @property
    def boot_id(self) -> str: ...


@dataclass(frozen=True)
class ModelCard:
    """What `/v1/models` says."""

    name: str
    max_model_len: int
    created: int
    vocab_size: int

    def body(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "carousel",
            "max_model_len": self.max_model_len,
        }


@dataclass
class Stage:
    """Filled by the loader, read by the routes; event loop only."""

    progress: float = 0.0
    message: str = "starting"
    started: float = field(default_factory=time.monotonic)
    core: Core | None = None
    preparer: Preparer | None = None
    card: ModelCard | None = None
    defaults: Settings = field(default_factory=Settings)
    stopping: bool = False

    def serving(self) -> tuple[Core, Preparer, ModelCard]:
        """Raises Failure loading, with how far it is."""
        if self.core is None or self.preparer is None or self.card is None:
            raise Failure("loading", f"The model is loading: {self.progress:.0%}, {self.message}.", retry_after=5.0)
        return self.core, self.preparer, self.card
