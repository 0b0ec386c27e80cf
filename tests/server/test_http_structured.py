"""Replies that must have a form, through the OpenAI client and the embedded model: pydantic in, pydantic out."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.server.http_kit import Running, running

WEATHER: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    warm: bool


class Palette(BaseModel):
    colours: list[Colour] = Field(min_length=2, max_length=2)
    lucky: int | None


class GetWeather(BaseModel):
    """Current weather of a city."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


@pytest.fixture(scope="module")
def speaking() -> Iterator[Running]:
    with running(engine="torch", settings={"limits.maxOutputTokens": 400}) as found:
        yield found
        found.idle(30)


@pytest.fixture(scope="module")
def client(speaking: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=speaking.url + "/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


def weather_tool(*, strict: bool) -> Any:
    tool: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")
    return tool if strict else {**tool, "function": {**tool["function"], "strict": False}}


@pytest.mark.parametrize("model", [Colour, Palette])
def test_a_reply_is_parsed_into_its_pydantic_model(client: OpenAI, model: type[BaseModel]) -> None:
    messages: Any = [{"role": "user", "content": "Name a colour."}]
    reply = client.chat.completions.parse(model="chat", messages=messages, response_format=model)
    parsed = reply.choices[0].message.parsed
    assert isinstance(parsed, model)
    assert reply.choices[0].finish_reason == "stop"
    assert model.model_validate_json(reply.choices[0].message.content or "") == parsed


def test_a_stream_is_parsed_into_its_pydantic_model(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Name a colour."}]
    with client.chat.completions.stream(model="chat", messages=messages, response_format=Colour) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Colour)


def test_a_reply_that_is_cut_is_the_clients_length_error(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Name a colour."}]
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="chat", messages=messages, response_format=Colour, max_tokens=2)


def test_a_schema_that_cannot_be_enforced_is_a_bad_request(client: OpenAI) -> None:
    schema: Any = {"name": "s", "strict": True, "schema": {"not": {"type": "string"}}}
    with pytest.raises(openai.BadRequestError, match="cannot be enforced"):
        client.chat.completions.create(
            model="chat", messages=WEATHER, response_format={"type": "json_schema", "json_schema": schema}
        )


def test_a_strict_function_is_called_with_arguments_that_fit_it(client: OpenAI) -> None:
    free: Any = client.chat.completions.create(model="chat", messages=WEATHER, tools=[weather_tool(strict=False)])
    assert "unit" not in json.loads(free.choices[0].message.tool_calls[0].function.arguments)
    tools = [weather_tool(strict=True)]
    reply = client.chat.completions.parse(model="chat", messages=WEATHER, tools=tools)
    assert reply.choices[0].finish_reason == "tool_calls"
    (call,) = reply.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, GetWeather)
    assert call.function.parsed_arguments.city == "Oslo"
    with client.chat.completions.stream(model="chat", messages=WEATHER, tools=tools) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert streamed.function.parsed_arguments == call.function.parsed_arguments


def test_a_strict_function_need_not_be_called(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello!"}]
    free = client.chat.completions.create(model="chat", messages=messages).choices[0].message.content
    reply = client.chat.completions.parse(model="chat", messages=messages, tools=[weather_tool(strict=True)])
    assert reply.choices[0].finish_reason == "stop"
    assert not reply.choices[0].message.tool_calls
    assert free
    assert reply.choices[0].message.content


def test_a_round_trip_with_a_strict_function_in_a_session(client: OpenAI, speaking: Running) -> None:
    session = speaking.session(tools=[weather_tool(strict=True)])
    extra = {"session_id": session}
    first: Any = client.chat.completions.create(model="chat", messages=WEATHER, extra_body=extra).choices[0].message
    arguments = GetWeather.model_validate_json(first.tool_calls[0].function.arguments)
    result = json.dumps({"temperature": 21 if arguments.city == "Oslo" else 0})
    results: Any = [{"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": result}]
    second = client.chat.completions.create(model="chat", messages=results, extra_body=extra).choices[0]
    assert second.finish_reason == "stop"
    assert "21" in (second.message.content or "")
    assert speaking.http.get(f"/v1/sessions/{session}").json()["turns"] == 2


def test_a_strict_function_whose_schema_is_wrong_is_refused_with_its_place(client: OpenAI) -> None:
    wrong: Any = weather_tool(strict=True)
    wrong["function"]["parameters"] = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "x"}}}}
    with pytest.raises(openai.BadRequestError, match=r"tools\[0\]|cannot be enforced") as caught:
        client.chat.completions.create(model="chat", messages=WEATHER, tools=[wrong])
    assert caught.value.param == "tools[0].function.parameters"
