"""What FP8 projections cost the model by their definition, whichever kernels run it."""

from statistics import median

import pytest
from carousel_server.engine import EMBEDDED, start
from carousel_server.messages import Message
from carousel_server.prompt import PromptTemplate
from carousel_server.tokenizer import Tokenizer

from tests.model.engine_kit import GREEDY, kept_logits, open_engine
from tests.model.gpu_files import Rounded
from tests.model.test_drafts import CHATS


def test_a_trained_model_with_rounded_projections_has_the_same_best_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy answers to chats, fed to both engines."""
    stored = open_engine("embedded", slots=1, drafts=0)
    monkeypatch.setattr(start, "Packer", Rounded)
    rounded = open_engine("embedded", slots=1, drafts=0)
    template = PromptTemplate.load(EMBEDDED, Tokenizer.load(EMBEDDED))
    errors, same = [], []
    for chat in CHATS:
        seqs = [(engine, engine.create(512)) for engine in (stored, rounded)]
        for engine, seq in seqs:
            engine.prefill(seq, list(template.render((Message(role="user", content=chat),), ()).tokens))
        token, left = -1, 40
        while left and token not in stored.info.stop_tokens:
            wanted, found = (kept_logits(engine, seq) for engine, seq in seqs)
            errors.append(float((found - wanted).norm() / wanted.norm()))
            token, left = int(wanted.argmax()), left - 1
            same.append(int(found.argmax()) == token)
            for engine, seq in seqs:
                engine.step(seq, token, GREEDY, 0)
        for engine, seq in seqs:
            engine.release(seq)
    print(f"{sum(same)} of {len(same)} alike; logits off by {median(errors):.3f}, at most {max(errors):.3f}")
    assert sum(same) >= 0.97 * len(same)
    assert 1e-3 < median(errors) < 0.04
