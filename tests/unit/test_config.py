"""Limits from a file, the environment and flags: which wins, and what is refused."""

import argparse
import re
from pathlib import Path

import pytest
from carousel_server.config import ConfigError, Setting, add_flags, load_config, settings
from carousel_server.limits import EngineSettings, Limits

FILE = """
generation = 7
[limits]
activeRequests = 2
requestBytes = "8Mi"
[limits.sessions]
idle = "1h30m"
[engine]
contextTokens = 4096
"""


def flags(*words: str) -> dict:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return vars(parser.parse_args(words))


def test_nothing_given_is_every_default():
    config = load_config()
    assert (config.limits, config.engine, config.generation) == (Limits(), EngineSettings(), 0)


def test_a_file_sets_what_it_names():
    config = load_config(toml=FILE)
    assert config.generation == 7
    assert config.limits.active_requests == 2
    assert config.limits.request_bytes == 8 * 2**20
    assert config.limits.sessions.idle == 5400
    assert config.limits.sessions.count == 64
    assert config.engine.context_tokens == 4096


def test_a_variable_wins_over_the_file_and_a_flag_over_both():
    variable = {"CAROUSEL_LIMITS_ACTIVE_REQUESTS": "3", "CAROUSEL_POD_NAME": "chat-0", "PATH": "/bin"}
    assert load_config(toml=FILE, environment=variable).limits.active_requests == 3
    flag = flags("--limits-active-requests", "5")
    assert load_config(toml=FILE, environment=variable, flags=flag).limits.active_requests == 5


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.dotted)
def test_every_setting_has_a_key_a_variable_and_a_flag(setting: Setting):
    values = {"bytes": "4096", "weights": "fp8", "prefillChunk": "128", "contextTokens": "128"}
    values |= dict.fromkeys(("idle", "socketTimeout", "headerTimeout"), "2s")
    kind = "bytes" if setting.path[-1].lower().endswith("bytes") else setting.path[-1]
    value = values.get(kind, "3")
    if setting.dotted == "engine.outputQueueBytes":
        value = "4096"
    by_flag = load_config(flags=flags(setting.flags[0], value))
    by_short_flag = load_config(flags=flags(setting.flags[-1], value))
    by_variable = load_config(environment={setting.variable: value})
    *tables, key = setting.path
    by_file = load_config(toml=f'[{".".join(tables)}]\n{key} = "{value}"')
    assert by_flag == by_short_flag == by_variable == by_file
    assert by_flag != load_config()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"toml": "[limits]\nactiveRequest = 2"}, "did you mean limits.activeRequests?"),
        ({"toml": "[limits]\nactive_requests = 2"}, "did you mean limits.activeRequests?"),
        ({"toml": "[limits.session]\ncount = 2"}, "did you mean limits.sessions?"),
        ({"toml": "[limit]\n"}, "known are generation, [limits] and [engine]"),
        ({"toml": "limits = 3"}, "must be a table"),
        ({"toml": "[limits]\nsessions = 3"}, "limits.sessions is 3"),
        ({"toml": "x ="}, "not TOML"),
        ({"toml": "generation = -1"}, "generation is -1"),
        ({"toml": 'generation = "2"'}, "generation is '2'"),
        ({"toml": "[limits]\nactiveRequests = 0"}, "limits.activeRequests is 0"),
        ({"toml": '[limits]\nrequestBytes = "4 MB"'}, "Ki Mi Gi"),
        ({"toml": '[limits]\nsocketTimeout = "soon"'}, "90s or 1h30m"),
        ({"toml": "[engine]\nprefillChunk = 100"}, "multiple of 64"),
        ({"environment": {"CAROUSEL_LIMITS_SESSION_IDLE": "1s"}}, "did you mean CAROUSEL_LIMITS_SESSIONS_IDLE?"),
        ({"environment": {"CAROUSEL_ENGINE_DRAFTS": "four"}}, "engine.drafts is 'four'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(source: dict, says: str):
    with pytest.raises(ConfigError, match=says.replace("?", r"\?").replace("[", r"\[")):
        load_config(**source)


def test_a_flag_cannot_be_shortened_by_accident():
    with pytest.raises(SystemExit):
        flags("--limits-active", "5")


def test_the_page_on_configuration_has_every_setting_and_no_other():
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    listed = re.findall(r"^\| `((?:limits|engine)\.[A-Za-z.]+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert listed == [setting.dotted for setting in settings()]
