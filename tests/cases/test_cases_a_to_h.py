"""Cases A to G at every split point, and those of E, G and H that are not about the text of one reply."""

import pytest

from tests.cases import replies
from tests.cases.numbers import case
from tests.cases.replay import Played, splits
from tests.cases.replies import REPLIES


@case(*{reply.number: None for reply in REPLIES})
@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.id)
def test_a_reply_is_read_the_same_at_every_split_point(reply: replies.Reply) -> None:
    for pieces in splits(reply.data):
        played = Played(pieces, reply)
        assert played.streamed == reply.content, pieces
        assert played.calls == list(reply.calls), pieces
        assert played.reply.finish == reply.expected_finish, pieces
        committed = played.message
        assert committed.content == reply.content, pieces
        assert [(c.name, dict(c.arguments)) for c in committed.tool_calls] == list(reply.calls), pieces
