"""Limits and engine settings from a TOML file, the environment and flags: flags win over variables, they over the file.

Every setting has three names, all derived from its place in limits.py: `limits.sessions.idle` is the TOML key `idle` in
the table `[limits.sessions]`, the variable `CAROUSEL_LIMITS_SESSIONS_IDLE` and the flag `--limits-sessions-idle`.
Unknown names are errors.
"""

import argparse
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from carousel_server.limits import EngineSettings, Limits

PREFIX = "CAROUSEL_"
TABLES: Mapping[str, type[BaseModel]] = {"limits": Limits, "engine": EngineSettings}


class ConfigError(ValueError):
    """A setting that cannot be honoured; ends the process with 64."""


@dataclass(frozen=True)
class Setting:
    """One leaf: its path in TOML, camelCase, and what people write."""

    path: tuple[str, ...]
    description: str
    default: Any
    hot: bool

    @property
    def dotted(self) -> str:
        """`limits.sessions.idle`"""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """`CAROUSEL_LIMITS_SESSIONS_IDLE`"""
        return PREFIX + "_".join(_snake(part).upper() for part in self.path)

    @property
    def flags(self) -> tuple[str, ...]:
        """`--limits-sessions-idle`; a start-only setting also without its table: `--gpu-state-slots`."""
        words = [_snake(part).replace("_", "-") for part in self.path]
        full = "--" + "-".join(words)
        return (full,) if self.hot else (full, "--" + "-".join(words[1:]))


@dataclass(frozen=True)
class Config:
    """What the server starts with. `generation` is the operator's, 0 without one."""

    limits: Limits
    engine: EngineSettings
    generation: int = 0


def settings() -> list[Setting]:
    """Every setting, in the order of limits.py."""
    return [leaf for name, model in TABLES.items() for leaf in _leaves(model, (name,))]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each setting; unset ones are left out of the namespace."""
    for name in TABLES:
        group = parser.add_argument_group(f"{name} (also {PREFIX}{name.upper()}_… and the TOML table [{name}])")
        for setting in settings():
            if setting.path[0] == name:
                group.add_argument(
                    *setting.flags,
                    dest=setting.dotted,
                    metavar="VALUE",
                    default=argparse.SUPPRESS,
                    help=setting.description.replace("%", "%%"),
                )


def load_config(
    *, toml: str = "", environment: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Config:
    """Merge the three sources. `flags` is a parsed namespace's dict; names without a dot are not ours.

    Raises ConfigError naming the setting, where it was set, and what is accepted.
    """
    try:
        found: dict[str, Any] = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration file is not TOML: {error}") from None
    generation = found.pop("generation", 0)
    if not isinstance(generation, int) or isinstance(generation, bool) or generation < 0:
        raise ConfigError(f"generation is {generation!r}: it must be a whole number, 0 or more")
    for name in found:
        if name not in TABLES:
            raise ConfigError(f"the configuration file has {name!r}; known are generation, [limits] and [engine]")
        if not isinstance(found[name], dict):
            raise ConfigError(f"{name} must be a table: write [{name}]")
    known = settings()
    for name in TABLES:
        _refuse_unknown(found.get(name, {}), (name,), known)
    _take_environment(found, known, environment or {})
    for setting in known:
        if setting.dotted in (flags or {}):
            _put(found, setting.path, (flags or {})[setting.dotted])
    parsed = {name: _validate(name, model, found.get(name, {})) for name, model in TABLES.items()}
    limits, engine = parsed["limits"], parsed["engine"]
    assert isinstance(limits, Limits)
    assert isinstance(engine, EngineSettings)
    return Config(limits, engine, generation)


def _take_environment(found: dict[str, Any], known: list[Setting], environment: Mapping[str, str]) -> None:
    by_variable = {setting.variable: setting for setting in known}
    for variable, value in environment.items():
        if not variable.startswith(tuple(f"{PREFIX}{name.upper()}_" for name in TABLES)):
            continue
        if variable not in by_variable:
            near = difflib.get_close_matches(variable, by_variable, 1)
            raise ConfigError(f"{variable} is no setting{f'; did you mean {near[0]}?' if near else ''}")
        _put(found, by_variable[variable].path, value)


def _refuse_unknown(table: Mapping[str, Any], path: tuple[str, ...], known: list[Setting]) -> None:
    depth = len(path) + 1
    names = {setting.path[:depth] for setting in known if setting.path[: depth - 1] == path}
    for key, value in table.items():
        here = (*path, key)
        if here not in names:
            near = difflib.get_close_matches(".".join(here), [".".join(name) for name in names], 1)
            raise ConfigError(f"{'.'.join(here)} is no setting{f'; did you mean {near[0]}?' if near else ''}")
        if isinstance(value, dict):
            _refuse_unknown(value, here, known)


def _validate(name: str, model: type[BaseModel], values: Mapping[str, Any]) -> BaseModel:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            where = ".".join([name, *(str(part) for part in problem["loc"])])
            lines.append(f"{where} is {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}")
        raise ConfigError("; ".join(lines)) from None


def _put(tables: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tables = tables.setdefault(name, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{name} must be a table")
    tables[path[-1]] = value


def _leaves(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Setting]:
    for name, info in model.model_fields.items():
        key = info.alias or name
        nested = info.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            yield from _leaves(nested, (*path, key))
        else:
            yield Setting((*path, key), info.description or "", info.default, hot=path[0] == "limits")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
