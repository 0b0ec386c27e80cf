"""Block-scaled FP8 weights: the definition, and the CPU backend."""

import torch
from torch import Tensor

BLOCK = 128  # rows and columns that share one scale


def dequantize(weight: Tensor, scale: Tensor) -> Tensor:
    """`weight[i, j] * scale[i // 128, j // 128]` in float32.

    weight [out, in] float8_e4m3fn; scale [ceil(out / 128), ceil(in / 128)] in any floating type.
    """
    rows, columns = weight.shape
    wide = scale.float().repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return weight.to(torch.float32).mul_(wide)
