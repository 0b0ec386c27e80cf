"""Values of tool parameters."""

from chats.draws import name
from chats.words import NAMES, WORDS, W

date = lambda r: f"20{r.randint(20, 35)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
clock = lambda r: f"{r.randint(0, 23):02d}:{r.choice([0, 15, 30, 45, 10, 5]):02d}"
email = lambda r, ev: (
    name(r, ev).lower().replace("é", "e").replace("ë", "e").replace("ö", "o")
    + "@"
    + r.choice(["example.com", "mail.org", r.choice(WORDS) + ".net", "test.io"])
)
fname = lambda r: (
    r.choice(WORDS)
    + r.choice(["", "_" + r.choice(WORDS), str(r.randint(1, 99))])
    + r.choice([".txt", ".py", ".md", ".json", ".csv", ".log", ".html"])
)
path = lambda r: (
    r.choice(
        ["", "", "/tmp/", "/home/" + r.choice(NAMES).lower() + "/", "src/", "docs/", "data/" + r.choice(WORDS) + "/"]
    )
    + fname(r)
)
url = lambda r: (
    "https://"
    + r.choice(["www.", ""])
    + r.choice(WORDS)
    + r.choice([".com", ".org", ".net"])
    + r.choice(["", "/" + r.choice(WORDS), "/" + r.choice(WORDS) + "/" + str(r.randint(1, 99))])
)
CUR = W("USD EUR GBP JPY CHF SEK NOK INR BRL CAD")
