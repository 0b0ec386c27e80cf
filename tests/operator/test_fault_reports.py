"""The fault reports that the operator answers, and the test that holds each: a number without a test fails here."""

import re
from pathlib import Path

import pytest

from tests.operator import child_rows, headline_rows
from tests.operator.plan_rows import SITUATIONS

TESTS = Path(__file__).parents[1]
SENTENCES = [
    *(row.sentence for row in SITUATIONS),
    *(row.sentence for row in headline_rows.ROWS),
    *(row.sentence for row in child_rows.ROWS),
]
ROW = "a row"

# number -> what went wrong elsewhere, and where it is held here: a row that begins with the number, or words of the
# name of a test in a file
REPORTS: dict[str, tuple[str, str]] = {
    "A1": ("a new pod is asked for while the old one holds the only GPU", ROW),
    "A2": ("an upgrade of the operator restarts every model", "operator/test_change.py::revision_of_a_known_spec"),
    "A3": ("all replicas are replaced at once", ROW),
    "A5": ("a stale view makes two new pods", ROW),
    "A6": ("a crash-looping pod is waited for for ever", ROW),
    "A7": ("a pod that is not ready is taken for idle", ROW),
    "A8": ("idleness is asked through the Service", "operator/test_api_limits.py::unreachable_pod_is_counted"),
    "A9": ("idleness is waited for without stopping admission", ROW),
    "A11": ("an operator restart resets or forgets a drain", "operator/test_api_drain.py::killed_at_each_step"),
    "A12": ("a rollback waits for the broken revision", ROW),
    "A13": ("an update of a whole child takes what others own", "operator/test_api_children.py::left_to_them"),
    "B14": ("scaling down cuts a stream", ROW),
    "B15": ("SIGTERM comes before the endpoint has gone", "operator/test_drain.py::termination_grace"),
    "B17": ("a shell is the first process and swallows SIGTERM", ROW),
    "B18": ("the server waits for ever on an open stream", "server/test_http_process.py::sigterm_gives_each_stream"),
    "B19": ("streams are cut without a last event", "server/test_http_process.py::sigterm_gives_each_stream"),
    "B20": ("the drain begins only after connections close", "server/test_http_admin.py::drain_goes_through"),
    "B21": ("a lost session looks like a new one", ROW),
    "B22": ("a session moves when a pod is added", ROW),
    "B24": ("every changed limit is a restart", ROW),
    "B25": ("a disruption budget blocks a node drain", "operator/test_workload.py::disruption_budget"),
    "B26": ("kubectl drain goes around the drain", ROW),
    "B27": ("an autoscaler moves a pod that loads", ROW),
    "B28": ("deleting the object hangs or cuts", "operator/test_api_reconcile.py::operator_stopped_leaves_nothing"),
    "C29": ("a large model is killed while it loads", ROW),
    "C30": ("a dead start is not seen for hours", ROW),
    "C31": ("a full queue or a drain fails the liveness probe", "server/test_http_admin.py::livez_fails_when"),
    "C32": ("a bad GPU is used again and again", ROW),
    "C34": ("a container is killed for memory without a word", ROW),
    "C35": ("/dev/shm is too small", ROW),
    "D36": ("a finalizer outlives the operator", "operator/test_kmock_watch.py::d36_d41"),
    "D38": ("uninstalling strands objects", ROW),
    "D39": ("a deleted object is handled twice", "operator/test_api_reconcile.py::in_any_phase"),
    "D41": ("progress is kept where the schema prunes it", "operator/test_kmock_watch.py::d36_d41"),
    "D42": ("conditions of others vanish", "operator/test_crd_api.py::conditions_of_two_managers"),
    "D43": ("a conflict loses a write", "operator/test_api_faults.py::d43"),
    "D44": ("a silent or broken watch stops everything", "operator/test_kmock_watch.py::d44"),
    "D45": ("a change during a reconcile is lost", "operator/test_queue.py::added_while_it_runs"),
    "D46": ("two operators freeze or fight", "operator/test_api_process.py::notices_a_second_one"),
    "D48": ("each retry posts an event", "operator/test_transitions.py::nothing_is_posted_while"),
    "D49": ("Ready is told of the generation before", "operator/test_headline.py::d49"),
    "D50": ("a column shows whatever condition is first", "operator/test_crd.py::columns_find_a_condition"),
    "D51": ("a missing optional kind stops everything", "operator/test_api_children.py::missing_optional_kind"),
    "D52": ("an absent optional block breaks the reconcile", "operator/test_api_random.py::d52"),
    "E55": ("pods of several nodes want one claim", ROW),
    "E56": ("a cache on a read-only mount cannot lock", ROW),
    "E58": ("a rotated Secret reaches nobody, or restarts all", ROW),
    "E59": ("a helper's pod lacks secrets and tolerations", ROW),
    "E60": ("an old CRD drops new fields", "operator/test_api_process.py::another_schema"),
    "E61": ("a schema with a null is refused", "operator/test_crd.py::structural_schema_forbids"),
    "E64": ("scaling to zero cuts whoever is there", ROW),
}

# Every report of the sections A to E; none is about the charts alone.
SECTIONS = {
    "A": (1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13),
    "B": (14, 15, 17, 18, 19, 20, 21, 22, 24, 25, 26, 27, 28),
    "C": (29, 30, 31, 32, 34, 35),
    "D": (36, 38, 39, 41, 42, 43, 44, 45, 46, 48, 49, 50, 51, 52),
    "E": (55, 56, 58, 59, 60, 61, 64),
}


def test_no_report_is_without_an_answer() -> None:
    assert set(REPORTS) == {f"{section}{number}" for section, numbers in SECTIONS.items() for number in numbers}


def holds(number: str, where: str) -> bool:
    """Whether a row begins with the number, or a test of that name is in the file."""
    if where == ROW:
        return any(sentence.startswith(f"{number} ") for sentence in SENTENCES)
    path, words = where.split("::")
    return any(words in name for name in re.findall(r"^(?:async )?def (test_\w+)", (TESTS / path).read_text(), re.M))


@pytest.mark.parametrize("number", REPORTS)
def test_the_report_is_held_by_a_test_that_exists(number: str) -> None:
    assert holds(number, REPORTS[number][1])


def test_what_no_test_holds_is_noticed() -> None:
    assert not holds("A4", ROW)
    assert not holds("A2", "operator/test_change.py::no_such_words")


def test_every_number_of_a_row_is_a_known_report() -> None:
    numbers = {found[1] for sentence in SENTENCES if (found := re.match(r"([A-E]\d+) ", sentence))}
    assert numbers <= set(REPORTS)
