"""What must hold when nothing runs: no reservation, no pin, and every byte count is the sum of its parts. Pure."""

from carousel_server.core import Core
from carousel_server.engine.protocol import Engine


def problems(core: Core, engine: Engine | None = None) -> list[str]:
    """Everything that an idle server still holds, or counts wrongly; empty when all is well. Call it under the lock."""
    found = sums(core)

    def expect(what: str, value: int, wanted: int = 0) -> None:
        if value != wanted:
            found.append(f"{what} is {value}, expected {wanted}")

    expect("requests registered", len(core.registry))
    expect("requests queued", len(core.queue))
    expect("requests running", core.running)
    expect("reserved bytes", core.ledger.total)
    expect("reservations", len(core.ledger.held))
    expect("pinned sessions", core.sessions.in_flight)
    expect("session bytes reserved", sum(session.growth for session in core.sessions))
    expect("pinned checkpoints", core.cache.pins)
    if engine is not None:
        expect("free slots", engine.free_slots(), engine.info.slots)
    return found


def sums(core: Core) -> list[str]:
    """What must hold at any time: totals equal the sum of their parts, and stay within the limits but for pins."""
    found = []

    def expect(what: str, value: int, wanted: int) -> None:
        if value != wanted:
            found.append(f"{what} is {value}, its parts sum to {wanted}")

    held = core.ledger.held.values()
    expect("reserved bytes", core.ledger.total, sum(one.total for one in held))
    expect("reserved checkpoint bytes", core.ledger.checkpoint, sum(one.checkpoint for one in held))
    expect("session bytes", core.sessions.bytes, sum(one.bytes + one.growth for one in core.sessions))
    expect("prefix cache bytes", core.cache.bytes, sum(one.bytes for one in core.cache) + core.cache.reserved)
    return found
