"""Copies between the tensors of a slot and pages of memory."""
