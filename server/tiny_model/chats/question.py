"""One question with its answer."""


def Q(u, a, k, s=None, raw=False):
    """u: what the user says, a: the answer, k: skill, s: short answer or None; raw: the case of u matters."""
    return dict(u=u, a=a, k=k, s=s, raw=raw)
