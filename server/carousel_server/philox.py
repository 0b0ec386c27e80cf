"""Philox4x32-10, the counter-based generator behind every draw: a uniform is a function of (seed, draw index).

Integers only, so that a CPU, a GPU and a replay agree. Checked against the published test vectors.
"""

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds over four 32-bit words under a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, draw: int) -> float:
    """The draw's value in [0, 1), a multiple of 2**-24: exact in fp32, so that no cast can round it up to 1."""
    words = philox((draw & _MASK, draw >> 32 & _MASK, 0, 0), (seed & _MASK, seed >> 32 & _MASK))
    return (words[0] >> 8) * 2.0**-24
