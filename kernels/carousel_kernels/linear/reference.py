"""A linear layer without bias: the definition, and the CPU backend."""

from torch import Tensor
from torch.nn.functional import linear as torch_linear


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`: x [T, in] float32, weight [out, in] float32; returns [T, out].

    A weight whose memory is [in, out] (a transposed view) is the fastest for one row on a CPU: 1048 x 256 takes 16 us
    on one core, against 25 for [out, in].
    """
    return torch_linear(x, weight)
