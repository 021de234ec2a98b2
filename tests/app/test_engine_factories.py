"""Which endpoints an engine process of the worker measures, and on which device."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadowspec.app.serve_worker import engine_factories, shard_group
from shadowspec.config import load_config

IN_PROCESS = """
[endpoints.{name}]
target = "target"
served_models = ["{name}"]
match = {{ model = "{name}" }}
[[endpoints.{name}.candidates]]
name = "k4"
draft = "draft"
num_speculative_tokens = 4
"""
SERVERS = """
[endpoints.{name}.servers]
baseline_url = "{baseline}"
speculative_url = "{speculative}"
device = "a device"
dtype = "float32"
"""


def endpoint(name: str, *urls: str) -> str:
    text = IN_PROCESS.format(name=name)
    if not urls:
        return text
    text = text.replace("target =", 'engine = "openai"\ntarget =')
    return text + SERVERS.format(name=name, baseline=urls[0], speculative=urls[1])


@pytest.mark.parametrize("devices", [[], ["cpu"], ["cuda:0", "cuda:1"]])
def test_each_device_and_each_set_of_servers_is_measured_apart(devices: list[str], tmp_path: Path) -> None:
    path = tmp_path / "shadowspec.toml"
    path.write_text(
        f"[worker]\ndevices = {devices}\n"
        + endpoint("one")
        + endpoint("apart", "http://d", "http://e")
        + endpoint("pair", "http://a", "http://b")
        + endpoint("same", "http://a/", "http://b/")
        + endpoint("two")
        + endpoint("sharing", "http://c", "http://b")
    )
    made = engine_factories(load_config(path, {}))
    assert [({*factory.endpoints}, factory.device) for factory in made] == [
        *(({"one", "two"}, device) for device in devices or ["auto"]),
        ({"apart"}, (devices or ["auto"])[0]),
        ({"pair", "same", "sharing"}, (devices or ["auto"])[1 % len(devices or [""])]),
    ]


def test_workers_of_other_endpoints_are_another_group() -> None:
    assert shard_group("shadowspec", ["chat"]) == "shadowspec.chat"
    assert shard_group("shadowspec", ["chat", "code"]) == "shadowspec.chat+code"
