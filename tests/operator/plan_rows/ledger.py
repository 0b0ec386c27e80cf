"""Boots that are gone, and who is told."""

from dataclasses import replace

from carousel_operator.view import Exit
from carousel_server.admin_state import LostBoot, PeersUpdate

from tests.operator.plan_rows.row import Row
from tests.operator.scene import crashing, loading, lost, pod, seen, sight, want

RESTARTED = pod(says={"boot": "boot-b"}, restarts=1, last_exit=Exit(139, "Error"))
ROWS = [
    Row(
        "B21 a container that was killed for memory loses its boot",
        want(),
        sight(replace(RESTARTED, last_exit=Exit(137, "OOMKilled")), seen=(seen(pod(), sessions=3),)),
        "peers to chat-0",
        lost="out-of-memory",
    ),
    Row(
        "B21 a container that crashed loses its boot",
        want(),
        sight(RESTARTED, seen=(seen(pod()),)),
        "peers to chat-0",
        lost="crash",
    ),
    Row(
        "a crash-looping container loses the boot that was seen",
        want(),
        sight(crashing(0, code=139), seen=(seen(pod()),)),
        "",
        lost="crash",
    ),
    Row(
        "a boot that is in the ledger is counted once",
        want(),
        sight(
            RESTARTED,
            seen=(seen(pod()),),
            peers=PeersUpdate(
                generation=1, lost=[LostBoot(ordinal=0, boot_id="boot0", cause="crash", at="2026-01-01T00:00:00Z")]
            ),
        ),
        "peers to chat-0",
        lost="",
    ),
    Row(
        "a pod that vanished unseen is unknown",
        want(),
        sight(loading(0, uid="other"), seen=(seen(pod()),)),
        "peers to chat-0",
        lost="unknown",
    ),
    Row(
        "a pod that was seen going was evicted",
        want(),
        sight(loading(0, uid="other"), seen=(seen(pod(), state="Terminating"),)),
        "peers to chat-0",
        lost="eviction",
    ),
    Row(
        "a pod that vanished with its node is told so",
        want(),
        sight(loading(0, uid="other", node="node-b"), seen=(seen(pod()),), nodes=lost()),
        "peers to chat-0",
        lost="node-lost",
    ),
    Row(
        "a pod on a lost node may still be alive: nothing is told",
        want(),
        sight(pod(0, ready=False, says=None), seen=(seen(pod()),), nodes=lost()),
        "",
        lost="",
    ),
    Row(
        "a pod that does not answer may still be alive: nothing is told",
        want(),
        sight(pod(says=None), seen=(seen(pod()),)),
        "",
        lost="",
    ),
    Row(
        "a terminating pod may still answer: nothing is told",
        want(),
        sight(pod(deleting=True, evicted=True), seen=(seen(pod()),)),
        "",
        lost="",
    ),
    Row("a pod with an older peers table gets the new one", want(), sight(pod(says={"peers": 0})), "peers to chat-0"),
    Row(
        "B22 a new pod is told to the others",
        want(replicas=2),
        sight(pod(0), pod(1), peers=sight(pod(0)).peers),
        "peers to chat-0, peers to chat-1",
    ),
]
