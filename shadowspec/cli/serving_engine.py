"""The serving engine for which a new configuration's verdicts are, and what that means."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from shadowspec.errors import UsageError
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.identity import engine_name
from shadowspec.types.serving_engines import IN_PROCESS, parse_engines


def choose_serving_engine(named: str | None, server: str | None) -> str:
    """The serving engine: as named, as a server reports it, as answered at a terminal, or the engine in process.

    Raises:
        UsageError: both options are given, or the name is not an engine's.
        ServiceUnavailableError: the server cannot be reached, or does not say what it is.
    """
    if server is not None:
        if named is not None:
            raise UsageError("--serving-engine and --server exclude each other; give one")
        if not server.startswith(("http://", "https://")):
            raise UsageError(f"--server {server}: is not a URL; give one such as http://HOST:8000")
        return engine_name(server)
    if named is None and not sys.stdin.isatty():
        return IN_PROCESS
    if named is None:
        question = f"Serving engine of your endpoint ({', '.join((*ENGINES, IN_PROCESS))}: the engine in this process)"
        named = str(typer.prompt(question, default=IN_PROCESS, err=True))
    if len(parse_engines(named)) != 1:
        raise UsageError(f'--serving-engine {named!r}: expected one engine, such as vllm, or "vllm 0.32"')
    return " ".join(named.split())


def chosen_servers(
    baseline: str | None, speculative: list[str] | None, draft: Path | None
) -> tuple[str, list[str]] | None:
    """The URLs of the servers that measure; None: this process does.

    Raises:
        UsageError: one of the arms is missing, or a draft is given that a server would have.
    """
    if (baseline is None) != (not speculative):
        lacking = "--speculative URL" if baseline is not None else "--baseline URL"
        raise UsageError(f"measuring through servers needs both arms; give {lacking} too")
    if baseline is None or not speculative:
        return None
    if draft is not None:
        raise UsageError("--draft is for the engine in this process; through servers the speculative one has its draft")
    return baseline, speculative


def is_in_process(engine: str) -> bool:
    """Whether an engine's name is that of the engine in this process."""
    return parse_engines(engine)[0].name == IN_PROCESS


def verdicts_for(engine: str) -> str:
    """The meaning of an engine's name for an endpoint that is measured in this process."""
    if is_in_process(engine):
        return f"verdicts are for {engine}, which serves no clients; `export` for another engine refuses them"
    return f"verdicts are for {engine}; latency must be measured on it, through two servers (docs/servers.md)"
