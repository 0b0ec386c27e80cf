"""What a failure inside an engine's call becomes, for both engines: who is told, and whether the process must end."""

from dataclasses import dataclass

import pytest
import torch
from carousel_server.engine.byte_vocabulary import ByteVocabulary
from carousel_server.engine.call import Call
from carousel_server.engine.protocol import EngineError
from carousel_server.engine.scripted import ScriptedEngine


@dataclass
class Row:
    """The least that is a sequence."""

    length: int = 0
    capacity: int = 8
    live: bool = True
    failed: bool = False


@pytest.mark.parametrize(
    ("error", "fatal", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True, "out of memory beyond its plan"),
        (
            RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with this and that.\n"),
            True,
            "the device failed: CUDA error: an illegal memory access was encountered$",
        ),
        (RuntimeError("Triton Error [CUDA]: unspecified launch failure"), True, "the device failed"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), False, "the device failed"),
    ],
)
def test_what_torch_raises_says_whether_the_device_is_lost(error: RuntimeError, fatal: bool, words: str) -> None:
    seq = Row()
    with pytest.raises(EngineError, match=words) as caught, Call(seq, Row):
        raise error
    assert caught.value.fatal is fatal
    assert caught.value.__cause__ is error
    assert seq.failed
    with pytest.raises(EngineError, match="failed in an earlier call"):
        Call(seq, Row)


def test_what_the_engine_refuses_changes_nothing() -> None:
    seq = Row()
    with pytest.raises(EngineError, match="too long"), Call(seq, Row):
        raise EngineError("too long")
    assert not seq.failed


def test_any_other_error_goes_through_and_ends_the_sequence_only() -> None:
    seq = Row()
    with pytest.raises(KeyError), Call(seq, Row):
        raise KeyError("a fault")
    assert seq.failed


def test_a_call_runs_in_inference_mode_and_leaves_it() -> None:
    with Call(Row(), Row):
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()


def test_another_engines_sequence_is_refused() -> None:
    other = ScriptedEngine(ByteVocabulary()).create(8)
    with pytest.raises(EngineError, match="is not a sequence of this engine"):
        Call(other, Row)
