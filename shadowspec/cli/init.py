"""`shadowspec init`: write a starting configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shadowspec import store
from shadowspec.app.progress_bar import notes
from shadowspec.app.try_out.configuration import DATABASE, DEFAULT_LOAD, SECRET, starting_config, write_secret
from shadowspec.app.try_out.preparation import infer_inputs, survey_inputs
from shadowspec.cli.console import write_file
from shadowspec.cli.options import ServedNamesOption
from shadowspec.cli.serving_engine import choose_serving_engine, verdicts_for
from shadowspec.config import DEFAULT_POLICY_NAME, config_template, filled_template, policy_template, served_sampling
from shadowspec.config.file import DEFAULT_CONFIG_NAME
from shadowspec.errors import UsageError
from shadowspec.servers.engines import ENGINES
from shadowspec.text import plain_text


def init(
    path: Annotated[Path, typer.Argument(help="File to write, or a folder to write it to.")] = Path("shadowspec.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    target: Annotated[
        Path | None,
        typer.Option("--target", metavar="DIR", help="Folder of the model that serves."),
    ] = None,
    traffic: Annotated[
        str | None,
        typer.Option("--traffic", metavar="FILE", help="A recording; served names and slices are inferred from it."),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option("--draft", metavar="DIR", help="Folder of a draft model; n-gram and suffix need none."),
    ] = None,
    models: ServedNamesOption = None,
    full: Annotated[bool, typer.Option("--full", help="Write every key with its default and meaning.")] = False,
    serving_engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help=f"The serving engine: {', '.join(ENGINES)}, ... Default: init asks on a terminal, else "
            "shadowspec-torch, the engine in this process.",
        ),
    ] = None,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Read the serving engine from this server.")] = None,
) -> None:
    """Write a starting configuration. Its verdicts are for the serving engine that it names.

    With --target and --traffic the file is short and complete, and init creates a secret and a database beside it.
    Without them init writes every key with its default and meaning, and a policy file.
    """
    if (target is None) != (traffic is None):
        missing = "--traffic FILE" if traffic is None else "--target DIR"
        raise UsageError(f"init needs --target and --traffic together; give {missing} too")
    if target is None and (draft is not None or models):
        raise UsageError("--draft and --model need --target DIR and --traffic FILE")
    if path.is_dir():
        path /= DEFAULT_CONFIG_NAME
    policy_path = path.parent / DEFAULT_POLICY_NAME
    written = [path] if target is not None and not full else [path, policy_path]
    for file in written:
        if file.exists() and not force:
            raise UsageError(f"{file} exists already; --force overwrites it")
    engine = choose_serving_engine(serving_engine, server)
    if target is None or traffic is None:
        write_file(path, config_template(str(policy_path), engine), makes_folder=True)
        lines = [
            f"{path} and {policy_path}; edit them, then run:",
            "shadowspec db upgrade && shadowspec doctor",
        ]
    else:
        notes.print("reading the traffic and the tokenizer", highlight=False)
        inputs, sample, others = infer_inputs(
            target, traffic, draft, models=models or (), serving_engine=engine, concurrency=DEFAULT_LOAD
        )
        database, secret = path.parent / DATABASE, path.parent / SECRET
        text = starting_config(inputs, survey_inputs(inputs, sample).slicing(), database, secret)
        write_secret(secret)
        write_file(path, filled_template(text, str(policy_path), engine) if full else text, makes_folder=True)
        lines = [
            ", ".join(map(str, (*written, secret, database))),
            f"endpoint {inputs.endpoint}: model {', '.join(inputs.served_models)}"
            + (f"; other models in the file, left out: {', '.join(others)} (--model NAME)" if others else ""),
            f"sampling: {served_sampling(inputs.target, engine, configured={}).text}",
            f"next: shadowspec doctor --config {path} --traffic {traffic}",
        ]
        store.upgrade(f"sqlite:///{database.as_posix()}")
    if policy_path in written:
        write_file(policy_path, policy_template())
    for line in (f"written: {lines[0]}", *lines[1:], f"serving_engine: {verdicts_for(engine)}"):
        notes.print(plain_text(line), highlight=False, markup=False, soft_wrap=True)
