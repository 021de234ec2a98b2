"""`shadowspec export-training`: logged conversations as a data set for the training of a draft."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.before_loading import require_endpoints
from shadowspec.app.training_export import TrainingExport, export_training
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption, OneEndpointOption, SliceOption
from shadowspec.cli.run import funnel_counts, print_funnel
from shadowspec.config import find_config, load_config
from shadowspec.tap.sources import require_file
from shadowspec.text import parse_labels, plural, slice_title
from shadowspec.types import parse_slice_key


def export_training_data(
    endpoint: OneEndpointOption,
    traffic: Annotated[
        list[str],
        typer.Option(
            "--traffic",
            metavar="LOG",
            help="A recording with responses: JSON lines (gzip or not); repeat it for several. - is standard input.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="New folder for the data set and its card.")],
    slice_labels: SliceOption = None,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write logged conversations in the form that vllm-project/speculators trains drafts on.

    Conversations are written once, the longest of those that continue each other, with a card of their contents.
    The folder holds the text of prompts: only its owner can read it.
    """
    config = load_config(find_config(config_path))
    require_endpoints(config)
    for log in traffic:
        require_file(log)
    export = export_training(config, traffic, endpoint, parse_labels(slice_labels or ()), out)
    if as_json:
        print_json(_document(export))
        return
    table = Table("slice", title=f"Conversations of endpoint {escape(endpoint)}", title_justify="left", box=None)
    for name in ("conversations", "assistant turns"):
        table.add_column(name, justify="right")
    for slice_key, counts in export.by_slice.items():
        table.add_row(
            escape(slice_title(slice_key)), f"{counts.num_conversations:,}", f"{counts.num_assistant_turns:,}"
        )
    results.print(table)
    print_funnel(export.funnel, {})
    results.print(
        f"{plural(export.num_used, 'conversation')} of {plural(export.num_read, 'record')}, and their card, are in "
        f"{export.out}; they hold prompt text",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _document(export: TrainingExport) -> dict[str, Any]:
    return {
        "endpoint": export.endpoint,
        "out": str(export.out),
        "labels": dict(export.labels),
        "num_records_read": export.num_read,
        "num_conversations": export.num_used,
        "first_event": export.first_event.isoformat(),
        "last_event": export.last_event.isoformat(),
        "slices": [
            {"slice": dict(parse_slice_key(slice_key)), **asdict(counts)}
            for slice_key, counts in export.by_slice.items()
        ],
        "temperatures": [
            {"temperature": temperature, "num_conversations": number}
            for temperature, number in export.temperatures.items()
        ],
        "sha256": dict(export.sha256),
        "funnel": funnel_counts(export.funnel),
    }
