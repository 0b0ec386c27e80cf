"""Linear layers without bias."""

import math

from torch import nn


def lin(i, o, gain=1.0):
    l = nn.Linear(i, o, bias=False)
    nn.init.normal_(l.weight, std=gain / math.sqrt(i))
    return l
