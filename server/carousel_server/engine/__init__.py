"""The engine: weights, experts and sequences. Knows nothing of HTTP, sessions or requests."""
