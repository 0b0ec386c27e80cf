"""Limits and sizes of running pods."""

from tests.operator.plan_rows.row import Row
from tests.operator.scene import OLD, GiB, loading, pod, sight, sizes, want

ROWS = [
    Row("B24 changed limits are pushed, not rolled", want(limits_generation=2), sight(pod()), "limits 2 to chat-0", 1),
    Row(
        "an unreachable pod is tried again later",
        want(replicas=2, limits_generation=2),
        sight(pod(0), pod(1, says=None)),
        "limits 2 to chat-0",
    ),
    Row("a pod with newer limits is left", want(limits_generation=2), sight(pod(says={"generation": 3})), ""),
    Row(
        "more memory is asked for before the limits are pushed",
        want(limits_generation=2, memory_bytes=10 * GiB),
        sight(pod(resize=sizes(8))),
        "resize chat-0 10Gi",
    ),
    Row(
        "the limits wait until the memory is there",
        want(limits_generation=2, memory_bytes=10 * GiB),
        sight(pod(resize=sizes(10, 8))),
        "",
        poll=2,
    ),
    Row(
        "then they are pushed",
        want(limits_generation=2, memory_bytes=10 * GiB),
        sight(pod(resize=sizes(10))),
        "limits 2 to chat-0",
    ),
    Row(
        "less memory: the limits are pushed first",
        want(limits_generation=2, memory_bytes=6 * GiB),
        sight(pod(resize=sizes(8))),
        "limits 2 to chat-0",
    ),
    Row(
        "less memory: then the pod shrinks",
        want(limits_generation=2, memory_bytes=6 * GiB),
        sight(pod(resize=sizes(8), says={"generation": 2})),
        "resize chat-0 6Gi",
    ),
    Row(
        "an infeasible resize becomes a restart",
        want(memory_bytes=10 * GiB),
        sight(pod(resize=sizes(10, 8, pending="Infeasible", message="node has 9Gi"))),
        "mark chat-0 rollout",
        1,
        "progressing",
    ),
    Row(
        "a resize that the API server refused becomes a restart",
        want(memory_bytes=10 * GiB),
        sight(pod(resize=sizes(8, refused=f"{10 * GiB}/1000 no room"))),
        "mark chat-0 rollout",
    ),
    Row(
        "a refusal of other sizes is forgotten",
        want(memory_bytes=9 * GiB),
        sight(pod(resize=sizes(8, refused=f"{10 * GiB}/1000 no room"))),
        "resize chat-0 9Gi",
    ),
    Row(
        "a deferred resize is waited for",
        want(memory_bytes=10 * GiB),
        sight(pod(resize=sizes(10, 8, pending="Deferred"))),
        "",
        1,
        "done",
    ),
    Row("without a plan no pod is resized", want(memory_bytes=None), sight(pod(resize=sizes(8))), ""),
    Row(
        "pods of an older revision are not resized",
        want(replicas=2, memory_bytes=10 * GiB),
        sight(loading(0), pod(1, OLD, resize=sizes(8))),
        "",
    ),
]
