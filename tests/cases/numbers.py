"""The numbers of the cases that every release must pass: faults that chat servers of this kind were reported for.

A test carries its numbers with `@case("A1", ...)`; test_numbers.py fails when a number has none.
"""

from collections.abc import Callable
from typing import TypeVar

A_TO_H = {
    "A1": "a call without its opener, behind prose",
    "A2": "the same with a name that is not declared",
    "A4": "an opener that arrives in two pieces",
    "A6": "a call to a declared tool inside a code fence",
    "A8": "a name that is nearly that of a declared tool",
    "A9": "a call in a request without tools",
    "A10": "a call although tool_choice is none",
    "A11": "a call written as JSON inside the tool mark",
    "A12": "text behind a call",
    "B1": "the end mark of a call inside a value",
    "B2": "the end mark of a value inside a value",
    "B3": "a whole pair of parameter marks inside a value",
    "B5": "a value that only the function's end closes",
    "B6": "a value that only the next parameter closes",
    "B8": "a doubled equals sign in a parameter mark",
    "B9": "a function mark without its closing bracket",
    "B11b": "a damaged end mark of a value",
    "B11c": "a whole call inside a value",
    "B12": "entities in a value",
    "C1": "indentation and a blank last line of code",
    "C2": "a value that begins with a newline",
    "C5": "CRLF in a value",
    "C6": "an empty value",
    "C7": "white space between marks",
    "D1": "digits where a string is declared",
    "D2": "a decimal where a string is declared",
    "D3": "an integer",
    "D4": "a date where an integer is declared",
    "D6": "a boolean or null",
    "D8": "an array or null by anyOf",
    "D9": "an object by reference",
    "D11": "no declared type",
    "D12": "True where a boolean is declared",
    "D14": "an exponent where an integer is declared",
    "D15": "an integer of thirty digits",
    "D17": "an object's text where a string is declared",
    "E1": "two calls in one delta",
    "E2": "indexes and finish of two calls",
    "E3": "a call without arguments",
    "E4": "a value and all end marks in one piece",
    "E5": "a cut by the token limit inside a value",
    "E7": "content of a reply that is only a call",
    "E8": "blank lines before a call",
    "E10": "tools together with response_format",
    "E11": "thinking marks around and inside a call",
    "F1": "an emoji over several tokens",
    "F2": "a two-byte letter over two tokens",
    "F3": "a reply that ends inside a rune",
    "F6": "a first token with a leading space",
    "F7": "the joined stream against one decode",
    "F8": "an emoji inside a value, split",
    "G1": "a stop string that begins inside a token",
    "G2": "a stop string over three tokens",
    "G3": "a stop string without a stream",
    "G5": "the end of a turn with a held partial stop",
    "G5c": "a tail that both stop and parser hold",
    "G7": "an empty stop string",
    "G8": "stop is honoured or refused, never ignored",
    "H1": "call arguments as a JSON string",
    "H2": "call arguments that are no JSON object",
    "H3": "null content beside tool calls",
    "H4": "no content key beside tool calls",
    "H6": "content of two text parts",
    "H7": "an image part",
    "H8": "a late system message",
    "H10": "a reasoning effort",
    "H11": "several tool results in a row",
    "H13": "white space and Unicode of the user's text",
    "H14": "the developer role",
}
K = {
    "K1": "usage in the last chunk of a stream, only when asked for",
    "K2": "max_completion_tokens",
    "K3": "a prompt longer than the context",
    "K4": "n above one",
    "K6": "a JSON schema is enforced or refused",
    "K7": "health while loading",
    "K8": "the same seed beside other chats",
}
NUMBERS = {**A_TO_H, **K}

Test = TypeVar("Test", bound=Callable[..., object])


def case(*numbers: str) -> Callable[[Test], Test]:
    """Marks a test as the one of these cases."""
    if unknown := [number for number in numbers if number not in NUMBERS]:
        raise ValueError(f"no such case: {unknown}")

    def mark(test: Test) -> Test:
        test.case_numbers = numbers  # type: ignore[attr-defined]
        return test

    return mark
