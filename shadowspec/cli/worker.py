"""`shadowspec worker`: consume the mirror until stopped."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import FrameType
from typing import Annotated

import typer

from shadowspec.app.before_loading import load_tokenizers, require_inputs, require_mirror
from shadowspec.app.progress_bar import notes
from shadowspec.app.serve_worker import engine_factories, serving
from shadowspec.cli.options import ConfigOption
from shadowspec.config import find_config, load_config
from shadowspec.errors import ExitCode
from shadowspec.worker.service import Service


def worker(
    config_path: ConfigOption = None,
    endpoints: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Measure only these endpoints, in a consumer group named after them.",
        ),
    ] = None,
) -> None:
    """Consume mirrored prompts from Kafka, measure them and store the results, until stopped.

    SIGTERM and Ctrl-C drain: the worker finishes, stores and commits its blocks, then exits. A second Ctrl-C exits at
    once; Kafka delivers unfinished messages again.
    """
    config = load_config(find_config(config_path))
    names = None if endpoints is None else [name.strip() for name in endpoints.split(",")]
    measured = config
    if names is not None:
        measured = replace(config, endpoints={name: config.chosen(name)[name] for name in names})
    mirror = require_mirror(config)
    require_inputs(measured, ())

    with notes.status("connecting"):
        tokenizers = load_tokenizers(measured)
    with serving(config, tokenizers, engine_factories(measured), names) as service:
        notes.print(
            f"consuming {', '.join(mirror.consumed_topics)}; health on http://{config.worker.health_address}",
            highlight=False,
        )
        run_until_stopped(service)


def run_until_stopped(service: Service) -> None:
    """Run with SIGTERM and SIGINT asking it to drain; a second SIGINT ends it at once."""
    received: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        if number in received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)
        service.stop()

    previous = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        service.run()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if signal.SIGINT in received:
        raise typer.Exit(ExitCode.INTERRUPTED)
