"""Ids and what became of those that are not here: 404, 410 and 503 told apart."""

from itertools import count

import pytest
from carousel_server.admin_state import LostBoot, Peer
from carousel_server.identity import Elsewhere, Identity, Lost, Unreachable


def entropy(start: int):
    numbers = count(start)
    return lambda n: (next(numbers) * 2654435761 % 2**64).to_bytes(8, "big").ljust(n, b"\x17")[:n]


HERE, THERE, BEFORE = Identity(2, entropy(1)), Identity(1, entropy(100)), Identity(2, entropy(200))
PEERS = [Peer(ordinal=1, address="chat-1.chat:8000", boot_id=THERE.boot_id, accepting=True)]
LOST = [LostBoot(ordinal=2, boot_id=BEFORE.boot_id, cause="rollout", at="2026-01-01T00:00:00Z")]


def status(identifier: str, noun="session", peers=(), lost=()):
    failure = HERE.missing(identifier, noun, peers, lost)
    return failure.status, failure.code


def test_ids_say_where_they_were_made_and_never_repeat():
    ids = {HERE.new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(one.startswith(f"2.{HERE.boot_id}.") for one in ids)
    assert {HERE.judge(one) for one in ids} == {"made_here"}


def test_an_id_of_this_boot_that_is_gone_has_expired():
    assert status(HERE.new_id()) == (410, "session_expired")


@pytest.mark.parametrize("position", [-1, -16, -17, -48])
def test_a_forged_id_of_this_boot_was_never_there(position):
    made = HERE.new_id()
    forged = list(made)
    forged[position] = "0" if forged[position] != "0" else "1"
    assert status("".join(forged)) == (404, "not_found")


@pytest.mark.parametrize(
    "text", ["", "x", "2", "2..", "2.abc.def", "../etc", "02." + HERE.new_id()[2:], HERE.new_id() + "0"]
)
def test_what_is_no_id_is_not_found(text):
    assert status(text, peers=PEERS, lost=LOST) == (404, "not_found")


def test_an_id_of_this_pods_earlier_boot_is_lost_with_the_ledgers_cause():
    old = BEFORE.new_id()
    failure = HERE.missing(old, "session", PEERS, LOST)
    assert (failure.status, failure.code) == (410, "session_lost")
    assert failure.details == {"cause": "rollout", "at": "2026-01-01T00:00:00Z"}
    unknown = HERE.missing(old, "session")
    assert (unknown.code, unknown.details["cause"]) == ("session_lost", "unknown")


def test_a_lost_boot_of_another_pod_is_lost_here_too():
    lost = [LostBoot(ordinal=1, boot_id=THERE.boot_id, cause="node-lost", at="2026-01-01T00:00:00Z")]
    assert isinstance(HERE.judge(THERE.new_id(), PEERS, lost), Lost)


def test_another_pods_id_is_its_owners():
    assert HERE.judge(THERE.new_id(), PEERS) == Elsewhere(PEERS[0])
    assert status(THERE.new_id(), peers=PEERS) == (503, "owner_unreachable")


def test_an_id_of_a_pod_that_no_table_knows_is_unreachable_not_lost():
    assert HERE.judge(THERE.new_id()) == Unreachable(1, THERE.boot_id)
    assert status(THERE.new_id()) == (503, "owner_unreachable")


def test_a_request_that_is_gone_is_not_found():
    assert status(HERE.new_id(), noun="request") == (404, "not_found")
