"""How strongly an n-gram embedding enters each stream."""

from carousel_kernels.ngram_gate.reference import gate

__all__ = ["gate"]
