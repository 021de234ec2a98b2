"""`shadowspec init`: write a starting configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from shadowspec import store
from shadowspec.app.progress_bar import notes
from shadowspec.app.try_out.configuration import (
    DATABASE,
    DEFAULT_LOAD,
    SECRET,
    TrialInputs,
    starting_config,
    write_secret,
)
from shadowspec.app.try_out.preparation import infer_inputs, infer_served, survey_inputs
from shadowspec.app.try_out.sample import Sample
from shadowspec.cli.console import write_file
from shadowspec.cli.options import BaselineOption, MapOption, ServedNamesOption, SpeculativeOption, chosen_map
from shadowspec.cli.serving_engine import choose_serving_engine, chosen_servers, verdicts_for
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
    baseline: BaselineOption = None,
    speculative: SpeculativeOption = None,
    field_map: MapOption = None,
) -> None:
    """Write a starting configuration. Its verdicts are for the serving engine that it names.

    With --target and --traffic, or with --baseline and --speculative, the file is short and complete, and init creates
    a secret and a database beside it. Without them init writes every key with its default and meaning, and a policy
    file.
    """
    servers = chosen_servers(baseline, speculative, draft)
    if servers is not None and (full or server is not None):
        raise UsageError(f"{'--full' if full else '--server'}: leave it out; the servers say everything")
    if servers is None and (target is None) != (traffic is None):
        missing = "--traffic FILE" if traffic is None else "--target DIR"
        raise UsageError(f"init needs --target and --traffic together; give {missing} too")
    if servers is None and target is None and (draft is not None or models):
        raise UsageError("--draft and --model need --target DIR and --traffic FILE")
    if path.is_dir():
        path /= DEFAULT_CONFIG_NAME
    policy_path = path.parent / DEFAULT_POLICY_NAME
    is_short = servers is not None or target is not None
    written = [path] if is_short and not full else [path, policy_path]
    for file in written:
        if file.exists() and not force:
            raise UsageError(f"{file} exists already; --force overwrites it")
    if servers is not None:
        notes.print("looking at the servers", highlight=False)
        inputs = infer_served(*servers, target, traffic, models or (), serving_engine, chosen_map(field_map))
        lines = _write_short(path, inputs, traffic, written)
    else:
        engine = choose_serving_engine(serving_engine, server)
        if target is None or traffic is None:
            write_file(path, config_template(str(policy_path), engine), makes_folder=True)
            lines = [f"{path} and {policy_path}; edit them, then run:", "shadowspec db upgrade && shadowspec doctor"]
        else:
            notes.print("reading the traffic and the tokenizer", highlight=False)
            inferred = infer_inputs(
                target,
                traffic,
                draft,
                models=models or (),
                serving_engine=engine,
                concurrency=DEFAULT_LOAD,
                field_map=chosen_map(field_map),
            )
            lines = _write_short(path, inferred, traffic, written, policy_path if full else None)
        lines.append(f"serving_engine: {verdicts_for(engine)}")
    if policy_path in written:
        write_file(policy_path, policy_template())
    for line in (f"written: {lines[0]}", *lines[1:]):
        notes.print(plain_text(line), highlight=False, markup=False, soft_wrap=True)


def _write_short(
    path: Path,
    inferred: tuple[TrialInputs, Sample | None, Counter[str]],
    traffic: str | None,
    written: Sequence[Path],
    policy_path: Path | None = None,
) -> list[str]:
    """Write a short configuration (in the whole template, with a policy) with a secret and a database.

    Returns:
        What to say of it.
    """
    inputs, sample, others = inferred
    slicing = None if sample is None else survey_inputs(inputs, sample).slicing()
    database, secret = path.parent / DATABASE, path.parent / SECRET
    text = starting_config(inputs, slicing, database, secret)
    write_secret(secret)
    whole = text if policy_path is None else filled_template(text, str(policy_path), inputs.serving_engine)
    write_file(path, whole, makes_folder=True)
    store.upgrade(f"sqlite:///{database.as_posix()}")
    served = [] if inputs.servers is None else [f"serving_engine: {inputs.serving_engine}, measured on it"]
    return [
        ", ".join(map(str, (*written, secret, database))),
        f"endpoint {inputs.endpoint}: model {', '.join(inputs.served_models)}"
        + (f"; other models in the file, left out: {', '.join(others)} (--model NAME)" if others else ""),
        *served,
        f"sampling: {served_sampling(inputs.target, inputs.serving_engine, configured={}).text}",
        f"next: shadowspec doctor --config {path}" + ("" if traffic is None else f" --traffic {traffic}"),
    ]
