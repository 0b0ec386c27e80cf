"""The ConfigMap of an InferenceServer: server.toml (hot limits) and peers.json (peers and lost boots). Pure.

Engine settings are not in it: they are flags of the pod template, so that a container that restarts during a rollout
keeps the settings of its own revision.
"""

import json
from collections.abc import Mapping
from typing import Any

from carousel_server.admin_state import PeersUpdate
from carousel_server.limits import Limits

SERVER_TOML = "server.toml"
PEERS_JSON = "peers.json"


def data(limits: Limits, generation: int, peers: PeersUpdate) -> dict[str, str]:
    """`data` of the ConfigMap."""
    return {SERVER_TOML: server_toml(limits, generation), PEERS_JSON: peers_json(peers)}


def server_toml(limits: Limits, generation: int) -> str:
    """The server's configuration file. What is unset is left to the server, which computes it as the plan does."""
    body = limits.model_dump(by_alias=True, mode="json", exclude_none=True)
    return f"# Made by the operator from spec.limits.\ngeneration = {generation}\n\n{_table('limits', body)}"


def peers_json(peers: PeersUpdate) -> str:
    """The peers and lost boots that the next boot starts with."""
    return json.dumps(peers.model_dump(by_alias=True, mode="json"), indent=1, sort_keys=True) + "\n"


def read_peers(config_map: Mapping[str, Any] | None) -> PeersUpdate:
    """The ledger as it was written last; an absent or unreadable one is empty at generation 0."""
    text = ((config_map or {}).get("data") or {}).get(PEERS_JSON, "")
    try:
        return PeersUpdate.model_validate_json(text)
    except ValueError:
        return PeersUpdate(generation=0)


def read_generation(config_map: Mapping[str, Any] | None) -> int:
    """The generation of the limits as it was written last; 0 when there is none."""
    text = ((config_map or {}).get("data") or {}).get(SERVER_TOML, "")
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "generation" and value.strip().isdigit():
            return int(value)
    return 0


def _table(name: str, values: Mapping[str, Any]) -> str:
    """A TOML table of integers and strings, and its subtables."""
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in plain.items())]
    return "\n".join(lines) + "\n" + "".join(f"\n{_table(f'{name}.{key}', value)}" for key, value in nested.items())
