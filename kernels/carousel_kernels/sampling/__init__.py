"""From logits to a token."""

from carousel_kernels.sampling.reference import adjust, choose, logprobs

__all__ = ["adjust", "choose", "logprobs"]
