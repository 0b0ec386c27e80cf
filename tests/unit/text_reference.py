"""Slow and obvious: what the streaming stages must compute, written over complete texts."""

import re

MARK = re.compile(r"<tool_call>|</tool_call>|<function=|</function>|<parameter=|</parameter")


def decoded(data: bytes) -> str:
    """UTF-8 as Python decodes it in one go."""
    return data.decode("utf-8", errors="replace")


def stopped(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The text before the stop string that ends first, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        ending = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(ending)], True
    return text, False


def fenced(before: str) -> bool:
    """Does the text `before` leave a code fence open?"""
    fence = ""
    *lines, last = before.split("\n")
    for line in lines:
        body = re.fullmatch(r"(?:[ \t]*(?:>|[-*+]|[0-9]{1,9}[.)])[ \t]+|[ \t]*>)*[ \t]*(.*)", line, re.DOTALL)
        run = re.match(r"`{3,}|~{3,}", body[1] if body else "")
        if fence:
            closing = line.lstrip(" \t>").rstrip(" \t\r")
            if closing.startswith(fence) and set(closing) == {fence[0]}:
                fence = ""
        elif run and not (run[0][0] == "`" and "`" in body[1][run.end() :]):
            fence = run[0]
    if fence:
        return True
    body = re.fullmatch(r"(?:[ \t]*(?:>|[-*+]|[0-9]{1,9}[.)])[ \t]+|[ \t]*>)*[ \t]*(.*)", last, re.DOTALL)
    run = re.match(r"`{3,}|~{3,}", body[1] if body else "")
    return bool(run and not (run[0][0] == "`" and "`" in body[1][run.end() :]))


Call = tuple[str, list[tuple[str, str]]]


def calls(text: str, declared: dict[str, set[str]]) -> tuple[str, list[Call]]:
    """Content and calls, values raw, of a whole reply."""
    content = ""
    found: list[Call] = []
    keep = True  # prose is content; not behind a call
    example = False
    at = 0
    while True:
        mark = re.compile("<tool_call>|<function=").search(text, at)
        if not mark:
            content += text[at:] if keep else ""
            break
        prose = text[at : mark.start()]
        content += prose if keep else ""
        example = example and not prose.strip()
        inside = fenced(masked(text[: mark.start()]))
        quoted = text[: mark.start()].endswith("`")
        opener = re.compile(r"<tool_call>[ \t\r\n]*<function=").match(text, mark.start())
        name_at = opener.end() if opener else mark.end() if mark[0] == "<function=" else None
        if inside or quoted or example or name_at is None:
            content += mark[0] if keep else ""
            example = quoted and not inside
            at = mark.end()
            continue
        verdict, end, name, values = body(text, name_at, declared)
        if verdict == "none":
            content += text[mark.start() : end] if keep else ""
        elif verdict == "open":
            content += text[mark.start() :]
            keep = True
            break
        elif name in declared:
            found.append((name, values))
            content = content.rstrip(" \t\r\n")
            keep = False
        else:
            content += text[mark.start() : end]
            keep = True
        if verdict == "closed":
            BLOCKS.append((mark.start(), end))
        example = False
        at = end
    if found and not keep:
        content = content.rstrip(" \t\r\n")
    BLOCKS.clear()
    return content, found


BLOCKS: list[tuple[int, int]] = []  # blocks of the text in work: no fence begins inside one


def masked(before: str) -> str:
    """The text with its blocks blanked out."""
    for start, end in BLOCKS:
        before = before[:start] + "x" * (end - start) + before[end:]
    return before


def body(text: str, at: int, declared: dict[str, set[str]]) -> tuple[str, int, str, list[tuple[str, str]]]:
    """What stands behind `<function=`: ("closed" | "open" | "none", where it ends, name, values)."""
    name_end = stop_of(text, at)
    if name_end == len(text):
        return "open", len(text), "", []
    name = text[at:name_end].strip()
    start = name_end + (text[name_end] == ">")
    first = MARK.search(text, start)
    if text[start : first.start() if first else len(text)].strip() or not first:
        junk = first is not None or text[start:].strip()
        return ("none" if junk else "open"), start, name, []
    if first[0] == "</function>":
        return "closed", first.end(), name, []
    if first[0] != "<parameter=" or (stop_of(text, first.end()) < len(text) and not key_of(text, first.end())):
        return "none", first.start(), name, []
    values: list[tuple[str, str]] = []
    key, begin = "", 0
    close: tuple[int, int, bool] | None = None
    pairs = nested = 0
    outside: int | None = None
    merged = False

    def finish(stop: int) -> None:
        end = stop
        if close and not (close[2] and text[close[1] : stop].strip()):
            end = close[0]
        elif line_before(text, stop) is not None:
            end = max(begin, stop - len(line_before(text, stop) or ""))
        values.append((key, text[begin:end]))

    position = first.start()
    opened = False
    while mark := MARK.search(text, position):
        here, after = mark.start(), mark.end()
        position = after
        if outside is not None and text[outside:here].strip():
            outside = None
        if mark[0] == "<parameter=":
            stop = stop_of(text, after)
            if stop == len(text):
                break
            position = stop + (text[stop] == ">")
            this = key_of(text, after)
            if not this:
                outside = None
                continue
            if opened:
                fits = name not in declared or not declared[name] or this in declared[name]
                inline = "\n" not in text[begin:here]
                late = (
                    fits
                    and this not in {k for k, _ in values} | {key}
                    and (inline or line_before(text, here) is not None)
                )
                real = not pairs and not nested and (outside is not None or late)
                if not real:
                    pairs, outside = pairs + 1, None
                    continue
                finish(here)
            opened, key, begin, close, outside = True, this, position, None, None
        elif mark[0] == "</parameter":
            damage = re.compile(r"[\w/=.-]{0,16}[ \t]*").match(text, after)
            assert damage
            if damage.end() < len(text) and text[damage.end()] not in ">\n<":
                outside = None
                continue
            position = damage.end() + (text[damage.end() : damage.end() + 1] == ">")
            inner = pairs > 0 or nested > 0
            close = (here, position, inner)
            pairs = max(0, pairs - 1)
            outside = None if inner else position
            edge = position
            merged = "function" in damage[0]
        elif mark[0] == "<function=":
            stop = stop_of(text, after)
            rest = text[stop + (text[stop : stop + 1] == ">") :].lstrip()
            if stop == len(text) or not rest.startswith(("<parameter=", "</function>")):
                outside = None
            elif outside is not None and not nested:
                finish(edge)
                return "closed", edge, name, values
            else:
                nested, outside = nested + 1, None
        elif mark[0] == "</function>":
            if nested:
                nested, pairs = nested - 1, 0
                continue
            rest = text[after:].lstrip()
            ends = not rest or rest.startswith(("</tool_call>", "<tool_call>", "<function="))
            end_of_line = re.compile(r"[ \t\r]*\n").match(text, after) is not None
            if ends or (outside is not None and (line_before(text, here) is not None or end_of_line)):
                finish(here)
                return "closed", after, name, values
            outside = None
        elif outside is not None:
            if mark[0] == "</tool_call>" and merged:
                finish(here)
                return "closed", edge, name, values
            outside = after
    return "open", len(text), name, values


def stop_of(text: str, at: int) -> int:
    """Where a name or key ends."""
    return min([n for n in (text.find(c, at) for c in "<>\n") if n >= 0], default=len(text))


def key_of(text: str, at: int) -> str:
    return text[at : stop_of(text, at)].strip().rstrip("=").rstrip()


def line_before(text: str, at: int) -> str | None:
    """The blanks between the start of the line and `at`; None when there is anything else, or no line break at all."""
    _, newline, line = text[:at].rpartition("\n")
    return line if newline and not line.strip(" \t") else None
