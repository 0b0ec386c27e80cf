"""The chat template: the same prompt as transformers, control text kept literal, boundaries, refusals, limits."""

from pathlib import Path

import carousel_server
import jinja2
import pytest
from carousel_server.failure import Failure
from carousel_server.prompt import PromptTemplate
from carousel_server.template import Template, TemplateRefusal
from carousel_server.tokenizer import Tokenizer
from carousel_server.turn import Message, Tool, ToolCall
from transformers import PreTrainedTokenizerFast

from tests.unit.text_conversations import ALL, CONVERSATIONS, A, S, U, calling, for_transformers, result

EMBEDDED = Path(carousel_server.__file__).parent / "embedded"
TOKENIZER = Tokenizer.load(EMBEDDED)
TEMPLATE = PromptTemplate.load(EMBEDDED, TOKENIZER)
# Uses what larger templates use: slices, namespaces, loop controls, string methods, nested macros, `generation`.
BUSY = """{%- macro show(c) -%}
  {%- if c is string -%}{{ c }}{%- else -%}{{ c | tojson(indent=2) }}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last=messages | length - 1, tools=false) -%}
{%- for m in messages[::-1] -%}
  {%- set n = messages | length - 1 - loop.index0 -%}
  {%- if m.role == 'user' and not (m.content.startswith('<b>') and m.content.endswith('</b>')) -%}
    {%- set ns.last = n -%}{%- break -%}
  {%- endif -%}
{%- endfor -%}
{% for m in messages %}
    {% if m.role == 'system' and not loop.first %}{% continue %}{% endif %}
<|im_start|>{{ m['role'] }}
    {% generation %}{{ show(m.content.split('</think>')[-1].lstrip('\\n')) }}{% endgeneration %}
    {% for call in m.tool_calls or [] %}
        {% for key, value in call.function.arguments | items %}
{{ loop.index }} {{ key | upper }}={{ value | string if value is string else value | tojson }};
        {% endfor %}
    {% endfor %}
    {% if loop.index0 > ns.last %}(fresh){% endif %}<|im_end|>
{% endfor %}
{% for t in tools or [] %}{{ t | tojson(sort_keys=true) }}{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{{ '<think>' if enable_thinking is not defined or enable_thinking else '' }}{% endif %}"""


@pytest.fixture(scope="module")
def theirs() -> PreTrainedTokenizerFast:
    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(EMBEDDED)
    return loaded


@pytest.mark.parametrize("template", [None, BUSY], ids=["embedded", "busy"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_text_and_ids_are_those_of_transformers(
    theirs: PreTrainedTokenizerFast, name: str, template: str | None
) -> None:
    messages, tools = CONVERSATIONS[name]
    ours = TEMPLATE if template is None else PromptTemplate(Template(template), TOKENIZER)
    options = {
        "tools": [tool.definition for tool in tools] or None,
        "add_generation_prompt": True,
        "enable_thinking": False,
        **({} if template is None else {"chat_template": template}),
    }
    conversation = [for_transformers(message) for message in messages]
    rendered = ours.render(messages, tools)
    assert rendered.text == theirs.apply_chat_template(conversation, tokenize=False, **options)
    assert list(rendered.tokens) == theirs.apply_chat_template(conversation, tokenize=True, **options)["input_ids"]


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_boundary_is_a_token_prefix_that_the_next_turn_keeps(name: str) -> None:
    messages, tools = CONVERSATIONS[name]
    rendered = TEMPLATE.render(messages, tools)
    longer = TEMPLATE.render((*messages, A("Well."), U("And then?")), tools)
    assert list(rendered.boundaries) == sorted(set(rendered.boundaries))
    for boundary in rendered.boundaries:
        assert 0 < boundary < len(rendered.tokens)
        head = rendered.tokens[:boundary]
        assert longer.tokens[:boundary] == head
        assert list(head) == TOKENIZER.encode_template(b"".join(map(_bytes, head)).decode())


def _bytes(token: int) -> bytes:
    names = {number: name.encode() for name, number in TOKENIZER.control_tokens.items()}
    return names.get(token) or TOKENIZER.token_bytes(token)


def test_boundaries_stand_behind_system_before_the_last_user_and_before_the_reply() -> None:
    rendered = TEMPLATE.render((S("Be brief."), U("a"), A("b"), U("c"), calling("", ("bare", {})), result("r")), ALL)
    parts = [b"".join(map(_bytes, rendered.tokens[:n])).decode() for n in rendered.boundaries]
    assert parts[0].endswith("Be brief.<|im_end|>\n")
    assert parts[1].endswith("\n\nb<|im_end|>\n")
    assert parts[2].endswith("<tool_response>\nr\n</tool_response><|im_end|>\n")
    assert len(parts) == 3


def test_without_a_head_only_the_history_is_a_boundary() -> None:
    rendered = TEMPLATE.render((U("."),), ())
    assert [b"".join(map(_bytes, rendered.tokens[:n])) for n in rendered.boundaries] == [
        b"<|im_start|>user\n.<|im_end|>\n"
    ]


@pytest.mark.parametrize("control", sorted(TOKENIZER.control_tokens))
def test_control_text_of_a_client_never_becomes_a_control_token(control: str) -> None:
    text = f"a{control}{control} b {control[:-1]}"
    arguments = {"q": text, control[:-1]: [text, {control: control}]}
    tools = (
        Tool("t", {"type": "function", "function": {"name": "t", "description": text, "parameters": {control: text}}}),
    )
    hostile = (
        S(text),
        U(text),
        Message("assistant", text, (ToolCall("1", f"n{control[:-1]}", arguments),)),
        Message("tool", text, tool_call_id="1"),
        U(text + " "),
    )
    harmless = (S("s"), U("u"), Message("assistant", "a", (ToolCall("1", "n", {"k": 1, "l": 2}),)), result("r"), U("u"))
    plain = (Tool("t", {"type": "function", "function": {"name": "t"}}),)
    rendered = TEMPLATE.render(hostile, tools)
    ids = set(TOKENIZER.control_tokens.values())
    assert [t for t in rendered.tokens if t in ids] == [t for t in TEMPLATE.render(harmless, plain).tokens if t in ids]
    assert f"user\n{text}<|im_end|>" in rendered.text
    assert b"".join(map(_bytes, rendered.tokens)).decode() == rendered.text


def test_private_use_characters_of_a_client_stay_when_control_text_is_covered() -> None:
    text = "".join(map(chr, range(0xE000, 0xE010))) + "<|im_end|>"
    assert f"user\n{text}<|im_end|>" in TEMPLATE.render((U(text),), ()).text


@pytest.mark.parametrize(
    ("messages", "first", "param", "says"),
    [
        ((U("a"), S("b"), U("c")), 0, "messages[1]", "system message must be the first"),
        ((U("a"), A("b"), U("c"), S("d")), 2, "messages[1]", "system message must be the first"),
        ((U("a"), result("b")), 0, "messages[1]", "tool message must follow"),
        ((S("a"),), 0, "messages", "At least one user message"),
        ((S("a"), A("b")), 0, "messages", "At least one user message"),
        ((), 0, "messages", "At least one message"),
        ((U("a"), S("b"), U("c")), 2, "messages", "system message must be the first"),
    ],
)
def test_a_refusal_names_the_message(messages: tuple[Message, ...], first: int, param: str, says: str) -> None:
    with pytest.raises(Failure) as caught:
        TEMPLATE.render(messages, (), first=first)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_request", param)
    assert says in caught.value.message


def test_a_lone_surrogate_is_a_400() -> None:
    with pytest.raises(Failure, match="surrogate"):
        TEMPLATE.render((U("a\ud800"),), ())


def test_values_nested_too_deeply_are_a_400() -> None:
    value: list[object] = []
    for _ in range(3_000):
        value = [value]
    with pytest.raises(Failure, match="nested too deeply"):
        TEMPLATE.render((U("a"), calling("", ("bare", {"x": value}))), ())


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{{ loop.index }}{% endfor %}{% endfor %}",
            "wrote more",
        ),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = loop.index %}{% endfor %}{% endfor %}",
            "ran for",
        ),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "ran for"),
        ("{{ ('x' * 99999) * 99999 }}", "repeats a text"),
        ("{{ 9 ** 9 ** 9 }}", "power"),
        ("{{ range(999999) | list }}", "Range too big"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ strftime_now('%Y') }}", "clock"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content.nothing.more }}", "no attribute"),
        ("{{ raise_exception('no') }}", "no"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "deeply"),
    ],
)
def test_a_template_cannot_leave_its_limits(source: str, says: str) -> None:
    template = Template(source, max_characters=5_000, max_seconds=0.5 if says == "ran for" else 60)
    with pytest.raises(TemplateRefusal, match=says):
        template.render({"messages": [{"role": "user", "content": "x"}]})


def test_a_limit_is_not_blamed_on_a_message() -> None:
    template = PromptTemplate(Template("{{ messages[0].content * 2000 }}", max_characters=1000), TOKENIZER)
    with pytest.raises(Failure) as caught:
        template.render((U("ab"),), ())
    assert caught.value.param == "messages"


def test_a_broken_template_is_found_when_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no chat_template"):
        PromptTemplate.load(tmp_path, TOKENIZER)
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(jinja2.TemplateSyntaxError):
        PromptTemplate.load(tmp_path, TOKENIZER)


def test_a_template_inside_the_tokenizers_configuration_is_used(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}!"}')
    assert PromptTemplate.load(tmp_path, TOKENIZER).render((U("hi"),), ()).text == "hi!"
