"""The fault reports that the operator answers, and the test that holds each: a number without a test fails here."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# number -> what went wrong elsewhere, and where it is held here: words of a test's name or of a table's row
REPORTS: dict[str, tuple[str, str, str]] = {
    "A1": ("a new pod is asked for while the old one holds the only GPU", "operator/test_plan.py", "A1 with one GPU"),
    "A2": ("an upgrade of the operator restarts every model", "operator/test_change.py", "revision_of_a_known_spec"),
    "A3": ("all replicas are replaced at once", "operator/test_plan.py", "A3 of three old pods"),
    "A5": ("a stale view makes two new pods", "operator/test_plan.py", "A5 while a pod goes"),
    "A6": ("a crash-looping pod is waited for for ever", "operator/test_plan.py", "A6 an old pod that crash-loops"),
    "A7": ("a pod that is not ready is taken for idle", "operator/test_plan.py", "A7 an old pod that is not ready"),
    "A8": ("idleness is asked through the Service", "operator/test_api_reconcile.py", "unreachable_pod_is_counted"),
    "A9": ("idleness is waited for without stopping admission", "operator/test_plan.py", "A9 a marked pod is quiesced"),
    "A11": ("an operator restart resets or forgets a drain", "operator/test_api_drain.py", "killed_at_each_step"),
    "A12": ("a rollback waits for the broken revision", "operator/test_plan.py", "A12 a rollback leaves"),
    "A13": ("an update of a whole child takes what others own", "operator/test_api_reconcile.py", "left_to_them"),
    "B14": ("scaling down cuts a stream", "operator/test_plan.py", "B14 replicas stay"),
    "B15": ("SIGTERM comes before the endpoint has gone", "operator/test_drain.py", "termination_grace"),
    "B18": ("the server waits for ever on an open stream", "server/test_http_process.py", "sigterm_gives_each_stream"),
    "B19": ("streams are cut without a last event", "server/test_http_process.py", "sigterm_gives_each_stream"),
    "B20": ("the drain begins only after connections close", "server/test_http_admin.py", "drain_goes_through"),
    "B21": ("a lost session looks like a new one", "operator/test_plan.py", "B21 a container that crashed"),
    "B22": ("a session moves when a pod is added", "operator/test_plan.py", "B22 a new pod is told"),
    "B24": ("every changed limit is a restart", "operator/test_plan.py", "B24 changed limits are pushed"),
    "B25": ("a disruption budget blocks a node drain", "operator/test_workload.py", "disruption_budget"),
    "B26": ("kubectl drain goes around the drain", "operator/test_plan.py", "B26 an evicted pod"),
    "B27": ("an autoscaler moves a pod that loads", "operator/test_plan.py", "B27 a pod that begins to load"),
    "B28": ("deleting the object hangs or cuts", "operator/test_api_reconcile.py", "operator_stopped_leaves_nothing"),
    "C30": ("a dead start is not seen for hours", "operator/test_status.py", "C30 loading"),
    "C31": ("a full queue or a drain fails the liveness probe", "server/test_http_admin.py", "livez_fails_when"),
    "C32": ("a bad GPU is used again and again", "operator/test_plan.py", "C32 a pod whose GPU fails"),
    "C34": ("a container is killed for memory without a word", "operator/test_status.py", "C34 killed for memory"),
    "D36": ("a finalizer outlives the operator", "operator/test_kmock_watch.py", "d36_d41"),
    "D39": ("a deleted object is handled twice", "operator/test_api_reconcile.py", "in_any_phase"),
    "D41": ("progress is kept where the schema prunes it", "operator/test_kmock_watch.py", "d36_d41"),
    "D42": ("conditions of others vanish", "operator/test_crd_api.py", "conditions_of_two_managers"),
    "D43": ("a conflict loses a write", "operator/test_api_faults.py", "d43"),
    "D44": ("a silent or broken watch stops everything", "operator/test_kmock_watch.py", "d44"),
    "D45": ("a change during a reconcile is lost", "operator/test_queue.py", "added_while_it_runs"),
    "D46": ("two operators freeze or fight", "operator/test_api_process.py", "notices_a_second_one"),
    "D48": ("each retry posts an event", "operator/test_status.py", "nothing_is_posted_while"),
    "D49": ("Ready is told of the generation before", "operator/test_status.py", "d49"),
    "D50": ("a column shows whatever condition is first", "operator/test_crd.py", "columns_find_a_condition"),
    "D51": ("a missing optional kind stops everything", "operator/test_api_reconcile.py", "missing_optional_kind"),
    "D52": ("an absent optional block breaks the reconcile", "operator/test_api_faults.py", "d52"),
    "E58": ("a rotated Secret reaches nobody, or restarts all", "operator/test_plan.py", "E58 a changed value"),
    "E60": ("an old CRD drops new fields", "operator/test_api_process.py", "another_schema"),
    "E61": ("a schema with a null is refused", "operator/test_crd.py", "structural_schema_forbids"),
    "E64": ("scaling to zero cuts whoever is there", "operator/test_plan.py", "E64 scaling to zero"),
}


@pytest.mark.parametrize("number", REPORTS)
def test_the_report_is_held_by_a_test_that_exists(number: str) -> None:
    _, path, words = REPORTS[number]
    lines = (TESTS / path).read_text().splitlines()
    assert any(words in line and (line.startswith(("def test_", "async def test_")) or '"' in line) for line in lines)


def test_every_number_of_a_plan_row_is_a_known_report() -> None:
    rows = (TESTS / "operator/test_plan.py").read_text() + (TESTS / "operator/test_status.py").read_text()
    numbers = set(re.findall(r'"([A-E]\d+) ', rows))
    assert numbers <= set(REPORTS)
