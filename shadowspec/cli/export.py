"""`shadowspec export`: current decisions as the configuration of a serving engine or of a flag system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shadowspec.app.exports import WantedExport, beside, export_decisions, export_document
from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import print_json, require_folder_of, write_file
from shadowspec.cli.options import DEFAULT_MAX_AGE, ConfigOption, ExpectEngineOption, MaxAgeOption
from shadowspec.config import find_config, load_config
from shadowspec.rollout.export.formats import FORMATS
from shadowspec.rollout.served_decision import describe, describe_orders
from shadowspec.store import Store
from shadowspec.text import parse_duration


def _known_format(text: str) -> str:
    if text not in FORMATS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(FORMATS)}.")
    return text


def export(
    form: Annotated[
        str,
        typer.Option("--format", "-f", help="What to write.", parser=_known_format, metavar=f"<{'|'.join(FORMATS)}>"),
    ],
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", "-e", metavar="NAME", help="The endpoint; default: the only one, or all in one."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="File to write; default: standard output.")
    ] = None,
    max_age: MaxAgeOption = DEFAULT_MAX_AGE,
    expect_engine: ExpectEngineOption = None,
    accept_other_engine: Annotated[
        bool, typer.Option("--accept-other-engine", help="Also export verdicts for another engine.")
    ] = False,
    routed: Annotated[
        bool,
        typer.Option("--routed", help="For the servers behind routes: they get only the slices that are on."),
    ] = False,
    to_confirm: Annotated[
        bool,
        typer.Option("--to-confirm", help="For the speculative server of a confirming run, before the rollout begins."),
    ] = False,
    speculative: Annotated[
        str | None,
        typer.Option(
            "--speculative", metavar="HOST:PORT", help="Routes: servers that speculate; default: the endpoint's pools."
        ),
    ] = None,
    plain: Annotated[
        str | None,
        typer.Option("--plain", metavar="HOST:PORT", help="Routes: servers that do not; default: the same."),
    ] = None,
    otherwise: Annotated[
        str | None,
        typer.Option(
            "--otherwise", metavar="HOST:PORT", help="Routes: servers of requests of no endpoint, on shared hosts."
        ),
    ] = None,
    gateway: Annotated[
        str, typer.Option("--gateway", metavar="NAME", help="Routes: the Gateway that an HTTPRoute attaches to.")
    ] = "gateway",
    config_path: ConfigOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document: the export and its reasons.")
    ] = False,
) -> None:
    """Write serving configuration from current ENABLE verdicts.

    Speculation is on only where an ENABLE is fresh and no override covers it. The reason of each decision goes to
    standard error. The command refuses verdicts for another engine (exit code 2): their latency was measured elsewhere.
    """
    require_folder_of(out)
    wanted = WantedExport(
        form=form,
        endpoint=endpoint,
        max_age=parse_duration(max_age),
        engine=expect_engine,
        speculative=speculative,
        plain=plain,
        gateway=gateway,
        otherwise=otherwise,
        is_routed=routed,
        is_to_confirm=to_confirm,
        accepts_other_engine=accept_other_engine,
        out=out,
    )
    config = load_config(find_config(config_path))
    with Store.open(config.database_url) as store:
        document, served = export_decisions(config, wanted, store)
    if as_json:
        print_json(export_document(form, document, served))
    elif out is None and document.instead is None:
        typer.echo(document.text, nl=False)
    if document.instead is not None:
        notes.print(document.instead, markup=False, highlight=False)
    for line in (*describe(served.decisions), *describe_orders(served.orders), *document.remarks):
        notes.print(line, markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        others = {beside(out, end): text for end, text in document.beside.items()}
        for path, text in {out: document.text, **others}.items():
            write_file(path, text)
            notes.print(f"written: {path}", markup=False, highlight=False)
