"""Days and months."""

from chats.question import Q
from chats.words import DAYS, MONTHS, W


def q_calendar(r, ev):
    k = r.randrange(5)
    L, what = (DAYS, "day") if r.random() < 0.55 else (MONTHS, "month")
    i = r.randrange(len(L))
    n = len(L)
    if k < 2:
        return Q(
            r.choice(
                [
                    f"Which {what} comes after {L[i]}?",
                    f"What comes after {L[i]}?",
                    f"What {what} is after {L[i]}?",
                    f"Which {what} follows {L[i]}?",
                ]
            ),
            f"{L[(i + 1) % n]} comes after {L[i]}.",
            "calendar",
            L[(i + 1) % n],
        )
    if k < 4:
        return Q(
            r.choice(
                [f"Which {what} comes before {L[i]}?", f"What comes before {L[i]}?", f"What {what} is before {L[i]}?"]
            ),
            f"{L[i - 1]} comes before {L[i]}.",
            "calendar",
            L[i - 1],
        )
    o = W("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")[i]
    return Q(
        f"What is the {o} {what} of the {'week' if what == 'day' else 'year'}?",
        f"The {o} {what} of the {'week' if what == 'day' else 'year'} is {L[i]}.",
        "calendar",
        L[i],
    )
