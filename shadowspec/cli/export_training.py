"""`shadowspec export-training`: logged conversations as a data set for the training of a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.before_loading import require_endpoints
from shadowspec.app.training_export import ExportedSlice, TrainingExport, export_training
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption, MapOption, OneEndpointOption, SliceOption, chosen_map
from shadowspec.cli.run import FunnelCount, funnel_counts, print_funnel
from shadowspec.config import find_config, load_config
from shadowspec.tap.sources import require_file
from shadowspec.text import parse_labels, plural, slice_title
from shadowspec.types.public_documents import Labels, PublicDocument, PublicValue, public, shows


@shows(ExportedSlice)
class SlicePart(PublicValue, frozen=True, kw_only=True):
    """What the data set has of a slice."""

    slice: Labels


class ConversationsAt(PublicValue, frozen=True, kw_only=True):
    """The conversations that were decoded at a temperature."""

    temperature: float
    num_conversations: int


@shows(TrainingExport, "by_slice")
class TrainingDocument(PublicDocument, frozen=True, kw_only=True):
    """The data set of `export-training --json`."""

    out: str
    num_records_read: Annotated[int, "num_read"]
    num_conversations: Annotated[int, "num_used"]
    slices: Sequence[SlicePart]
    temperatures: Sequence[ConversationsAt]
    funnel: Sequence[FunnelCount]


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
    field_map: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write logged conversations in the form that vllm-project/speculators trains drafts on.

    Conversations are written once, the longest of those that continue each other, with a card of their contents.
    The folder holds the text of prompts: only its owner can read it.
    """
    config = replace(load_config(find_config(config_path)), given_format=chosen_map(field_map))
    require_endpoints(config)
    for log in traffic:
        require_file(log)
    export = export_training(config, traffic, endpoint, parse_labels(slice_labels or ()), out)
    if as_json:
        slices = [public(SlicePart, counts, slice=slice_key) for slice_key, counts in export.by_slice.items()]
        temperatures = [
            ConversationsAt(temperature=temperature, num_conversations=number)
            for temperature, number in export.temperatures.items()
        ]
        print_json(
            public(
                TrainingDocument,
                export,
                out=str(export.out),
                slices=slices,
                temperatures=temperatures,
                funnel=funnel_counts(export.funnel),
            )
        )
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
