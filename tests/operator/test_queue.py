"""The queue: one reconcile per key at a time, back-off per key, and nothing lost in any order of events."""

from carousel_operator.queue import LAST_BACKOFF, Queue
from hypothesis import given
from hypothesis import strategies as st


def test_a_key_is_taken_once_however_often_it_was_added() -> None:
    queue: Queue[str] = Queue()
    for _ in range(5):
        queue.add("a", 0.0)
    assert (queue.take(0.0), queue.take(0.0), queue.depth) == ("a", None, 0)


def test_a_key_added_while_it_runs_runs_again_afterwards() -> None:
    queue: Queue[str] = Queue()
    queue.add("a", 0.0)
    assert queue.take(0.0) == "a"
    queue.add("a", 0.0)
    assert queue.take(1.0) is None
    queue.done("a")
    assert queue.take(1.0) == "a"


def test_a_delayed_key_waits_and_an_event_brings_it_forward() -> None:
    queue: Queue[str] = Queue()
    queue.add("a", 15.0)
    assert (queue.take(14.0), queue.next_at()) == (None, 15.0)
    queue.add("a", 3.0)
    assert queue.take(3.0) == "a"


def test_the_key_that_waited_longest_comes_first() -> None:
    queue: Queue[str] = Queue()
    queue.add("b", 2.0)
    queue.add("a", 1.0)
    assert [queue.take(5.0), queue.take(5.0)] == ["a", "b"]


def test_failures_back_off_to_five_minutes_and_a_success_forgets_them() -> None:
    queue: Queue[str] = Queue()
    delays = []
    now = 0.0
    for _ in range(12):
        queue.add("a", now)
        now = max(now, queue.next_at() or now)
        assert queue.take(now) == "a"
        delays.append(queue.failed("a", now))
    assert delays[:4] == [1.0, 2.0, 4.0, 8.0]
    assert delays[-1] == LAST_BACKOFF
    now += LAST_BACKOFF
    assert queue.take(now) == "a"
    queue.done("a")
    queue.add("a", now)
    assert queue.take(now) == "a"
    assert queue.failed("a", now) == 1.0


def test_events_do_not_shorten_a_back_off_but_a_changed_spec_ends_it() -> None:
    queue: Queue[str] = Queue()
    queue.add("a", 0.0)
    queue.take(0.0)
    queue.failed("a", 0.0, at_least=60.0)
    queue.add("a", 1.0)
    assert queue.take(59.0) is None
    queue.add("a", 2.0, fresh=True)
    assert queue.take(2.0) == "a"


def test_one_bad_key_does_not_hold_up_another() -> None:
    queue: Queue[str] = Queue()
    queue.add("bad", 0.0)
    queue.add("good", 0.0)
    assert queue.take(0.0) == "bad"
    queue.failed("bad", 0.0)
    assert queue.take(0.0) == "good"


def test_the_server_s_retry_after_is_obeyed() -> None:
    queue: Queue[str] = Queue()
    queue.add("a", 0.0)
    queue.take(0.0)
    assert queue.failed("a", 0.0, at_least=30.0) == 30.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "fresh", "take", "done", "failed", "forget"]),
            st.sampled_from("abc"),
            st.floats(min_value=0, max_value=5),
        )
    )
)
def test_in_any_order_no_key_runs_twice_at_once_and_none_that_was_added_is_lost(
    steps: list[tuple[str, str, float]],
) -> None:
    queue: Queue[str] = Queue()
    now, running, owed = 0.0, set[str](), set[str]()
    for what, key, wait in steps:
        now += wait
        match what:
            case "add" | "fresh":
                queue.add(key, now, fresh=what == "fresh")
                owed.add(key)
            case "take":
                taken = queue.take(now)
                if taken is not None:
                    assert taken not in running
                    running.add(taken)
                    owed.discard(taken)
            case "done" if key in running:
                queue.done(key)
                running.discard(key)
            case "failed" if key in running:
                queue.failed(key, now)
                running.discard(key)
                owed.add(key)
            case "forget":
                queue.forget(key)
                owed.discard(key)
    for key in running:
        queue.done(key)
    left = set()
    while (taken := queue.take(now + LAST_BACKOFF * 2)) is not None:
        left.add(taken)
    assert left == owed
