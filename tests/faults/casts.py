"""Who plays in the storm: an engine without a model on made-up traffic, or the bundled pair on bundled traffic."""

from __future__ import annotations

import gzip
import json
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowspec import demo
from shadowspec.engine.tokenizer import load_tokenizer
from tests.fakes import FakeTokenizer
from tests.faults.traffic import messages
from tests.kafka_topics import Message

SECRET = "a secret for the storm alone"
SERVICES = """
[database]
url = "{database}"
[kafka]
bootstrap_servers = ["{bootstrap}"]
topics = ["{topic}"]
group_id = "storm"
dead_letter_topic = "{dead_letters}"
session_timeout_ms = {session_timeout_ms}
heartbeat_interval_ms = 2000
max_poll_interval_ms = 30000
[worker]
health_address = "127.0.0.1:{port}"
flush_interval_s = 0.2
block_timeout_s = {timeout}
"""
FAKE_CONFIG = (
    SERVICES.replace("{timeout}", "20.0")
    + """
[gate]
block_max_wait_s = 5.0
min_span_s = 0.0
window_s = 0.0  # all of the traffic is measured, so that what must be measured is known beforehand
[endpoints.chat]
target = "target"
served_models = ["chat-model"]
match = {{ model = "chat-model" }}
sample_rate = 0.8
loads = [{{ concurrency = 4 }}]
[[endpoints.chat.candidates]]
name = "fake"
draft = "draft"
num_speculative_tokens = 4
[endpoints.code]
target = "target"
served_models = ["code-model"]
match = {{ model = "code-model" }}
loads = [{{ concurrency = 2 }}, {{ concurrency = 4 }}]
[[endpoints.code.candidates]]
name = "fake"
draft = "draft"
num_speculative_tokens = 4
"""
)


@dataclass(frozen=True, slots=True)
class Cast:
    """A configuration to be filled in, how its worker is started, and the traffic."""

    name: str
    config: str
    command: Callable[[Path, str], list[str]]
    traffic: list[Message]
    tokenizer: Any


def fakes(num_messages: int, seed: int) -> Cast:
    """An engine that needs no model; its workers also die between write and commit."""

    def command(config: Path, draw: str) -> list[str]:
        return [sys.executable, "-m", "tests.faults.worker_main", str(config), "--seed", draw]

    return Cast("fakes", FAKE_CONFIG, command, messages(num_messages, seed), FakeTokenizer())


def real_pair(num_messages: int, _seed: int) -> Cast:
    """The bundled models, and the first messages of the bundled traffic, keyed by session."""
    demo_config = demo.demo_config(Path("unused"), 0)
    endpoints = demo_config[demo_config.index("[endpoints.") :].replace("{", "{{").replace("}", "}}")
    policy = tomllib.loads(demo_config)["gate"]
    limits = "block_max_wait_s = 5.0\nmin_span_s = 0.0\nwindow_s = 0.0"
    gate = f"[gate]\n{limits}\ntimed_positions = {policy['timed_positions']}\n"
    traffic: list[Message] = []
    with gzip.open(demo.TRAFFIC, "rb") as lines:
        for number, line in zip(range(num_messages), lines, strict=False):
            try:
                session = str(json.loads(line)["session_id"])
            except (ValueError, KeyError, TypeError):
                session = "none"  # bad on purpose
            traffic.append(Message(line.rstrip(b"\n"), session.encode(), timestamp_ms=1_700_000_000_000 + number))

    def command(config: Path, _draw: str) -> list[str]:
        return [sys.executable, "-m", "shadowspec", "worker", "--config", str(config)]

    services = SERVICES.replace("{timeout}", "300.0")  # the first block warms up, beside two other workers
    return Cast("the bundled pair", services + gate + endpoints, command, traffic, load_tokenizer(str(demo.TARGET)))
