"""Block-scaled FP8 weights: the definition, and the CPU backend."""

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 128  # rows and columns that share one scale
LARGEST = 448.0  # of float8_e4m3fn


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The FP8 weight and its scales, as `dequantize` takes them: the largest value of a block becomes LARGEST.

    weight [out, in] in any floating type. A block of zeros, or of values too small for a scale, has the scale 1.
    """
    rows, columns = weight.shape
    padded = pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK)).contiguous()
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    most = blocks.abs().amax((1, 3))
    # by a tensor: CUDA multiplies by the reciprocal of a number, whose last bit then decides the many ties of rounding
    scale = most / most.new_tensor(LARGEST)
    scale = torch.where(scale == 0, 1.0, scale)
    values = (blocks / scale[:, None, :, None]).view_as(padded)[:rows, :columns]
    return values.to(torch.float8_e4m3fn).contiguous(), scale


def dequantize(weight: Tensor, scale: Tensor) -> Tensor:
    """`weight[i, j] * scale[i // 128, j // 128]` in float32.

    weight [out, in] float8_e4m3fn; scale [ceil(out / 128), ceil(in / 128)] in any floating type.
    """
    rows, columns = weight.shape
    wide = scale.float().repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return weight.to(torch.float32).mul_(wide)
