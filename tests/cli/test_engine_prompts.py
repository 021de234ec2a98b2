"""Requests that production renders by other rules are evidence of another config."""

from __future__ import annotations

from pathlib import Path

from shadowspec.app.measure_files import build_engines
from shadowspec.config import load_config
from tests.builders.workspace import CONFIG, Workspace


def test_endpoints_whose_engines_render_prompts_otherwise_share_no_fingerprint(
    workspace: Workspace, tiny_pair: tuple[Path, Path]
) -> None:
    target, draft = tiny_pair
    endpoint = CONFIG.format(target=target, draft=draft).partition("[endpoints.letters]")[2]
    served = (
        ("plain", ""),
        ("again", ""),
        ("first", 'serving_engine = "vllm"'),
        ("second", 'serving_engine = "sglang"'),
    )
    tables = [
        f"[endpoints.{name}]\n{line}{endpoint.replace('[[endpoints.letters', f'[[endpoints.{name}')}"
        for name, line in served
    ]
    head = CONFIG.partition("[endpoints.letters]")[0]
    (workspace.folder / "shadowspec.toml").write_text(head + "\n".join(tables), encoding="utf-8")
    engines = build_engines(load_config(workspace.folder / "shadowspec.toml"))
    configs = {name: engine.configs[0] for name, engine in engines.items()}
    assert engines["plain"] is engines["again"]
    assert len({config.fingerprint for config in configs.values()}) == 3
    assert configs["plain"].differing_details(configs["second"]) == ["prompt_rules"]
    assert 'part_separator=" "' in configs["second"].details["prompt_rules"]
