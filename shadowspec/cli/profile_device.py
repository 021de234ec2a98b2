"""`shadowspec profile-device`: the cost of a step on this device, by load, depth and context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.before_loading import require_inputs
from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import json_text, print_json, require_folder_of, results, write_file
from shadowspec.cli.options import (
    ConfigOption,
    ContextsOption,
    EndpointOption,
    IsGreedyOption,
    JsonOption,
    StoreOption,
    SurfaceOption,
)
from shadowspec.cli.replay import parse_depths
from shadowspec.config import find_config, load_config
from shadowspec.errors import UsageError
from shadowspec.planning.cost_model import CostSurface
from shadowspec.store import Store, current
from shadowspec.types import BASELINE, Place, StepCost, VerifyRule
from shadowspec.types.public_documents import PublicDocument, PublicValue, public, shows

if TYPE_CHECKING:
    from shadowspec.app.profile_engine import Profile

T = TypeVar("T")
MAX_LOAD, MAX_CONTEXT = 1_024, 1_000_000


@shows(StepCost, "concurrency")
class CostPoint(PublicValue, frozen=True, kw_only=True):
    """The cost of a step at a load, depth and context."""

    concurrency: int
    step_ms: float
    break_even_length: float


class ProfilePart(PublicValue, frozen=True, kw_only=True):
    """The costs of a pair under a verify rule, and what they were measured on."""

    endpoints: Sequence[str]
    config: Annotated[str, "config.config.name"]
    fingerprint: str
    engine: str
    device: str
    dtype: str
    verify_rule: Annotated[VerifyRule, "config.config.verify_rule"]
    is_greedy: Annotated[bool, "key.is_greedy"]
    profiled_at: datetime
    points: Sequence[CostPoint]


class ProfileDocument(PublicDocument, frozen=True, kw_only=True):
    """The profiles of `profile-device --json`, and of its file."""

    profiles: Sequence[ProfilePart]


def profile_device(
    config_path: ConfigOption = None,
    endpoint: EndpointOption = None,
    loads: Annotated[
        str, typer.Option("--loads", metavar="LIST", help="Concurrencies, such as 1,4,16.")
    ] = "1,2,4,8,16",
    depths: Annotated[
        str, typer.Option("--k", metavar="K", help="Numbers of speculative tokens: a range 1..8 or a list 1,2,4.")
    ] = "1,2,4,8",
    contexts: ContextsOption = "64,512",
    is_greedy: IsGreedyOption = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements per point; the median counts.")] = 3,
    out: SurfaceOption = None,
    is_wanted: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the cost of a step with and without speculation on this device, and the acceptance that pays for it.

    Run nothing else meanwhile. Report and dashboard show predictions from these costs; no verdict uses them.
    """
    require_folder_of(out)
    config = load_config(find_config(config_path))
    require_inputs(config, (), endpoint)
    wanted = (
        parse_numbers("--loads", loads, MAX_LOAD),
        parse_depths(depths),
        parse_numbers("--contexts", contexts, MAX_CONTEXT),
    )
    from shadowspec.app.profile_engine import profile_pairs
    from shadowspec.engine.profiling import ProfileGrid

    grids = [
        ProfileGrid(
            loads=wanted[0],
            depths=wanted[1],
            contexts=wanted[2],
            is_greedy=literal,
            rounds=rounds,
        )
        for literal in ((True, False) if is_greedy is None else (is_greedy,))
    ]
    is_stored = current(config.database_url) is not None if is_wanted is None else is_wanted
    with ExitStack() as stack:
        # Opened first: a profile takes minutes, and a missing database is reported at once.
        store = stack.enter_context(Store.open(config.database_url)) if is_stored else None

        def keep(profile: Profile) -> None:
            if store is not None:
                store.append_costs(profile.costs)

        profiles = profile_pairs(config, grids, endpoint=endpoint, on_profile=keep)
    document = ProfileDocument(profiles=list(map(_shown, profiles)))
    show_profiles(profiles, document, None if as_json else _print, out, is_stored=is_stored, is_wanted=is_wanted)


def show_profiles(
    profiles: Sequence[T],
    document: PublicDocument,
    show: Callable[[T], None] | None,
    out: Path | None,
    *,
    is_stored: bool,
    is_wanted: bool | None,
) -> None:
    """Write the document to `out`, say where the costs are, and print each profile by `show` (None: the document)."""
    if out is not None:
        write_file(out, json_text(document))
        notes.print(f"cost surface written to {escape(str(out))}")
    if is_stored:
        notes.print("cost surface stored; `shadowspec report` and the dashboard show its predictions", markup=False)
    elif is_wanted is None:
        notes.print("not stored: there is no database yet; create it with `shadowspec db upgrade`", markup=False)
    if show is None:
        print_json(document)
    else:
        for profile in profiles:
            show(profile)


def parse_numbers(option: str, text: str, largest: int) -> tuple[int, ...]:
    """The numbers of a list, in order.

    Raises:
        UsageError: it has another form, or a number is not from 1 to the largest.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or max(numbers) > largest:
        raise UsageError(f"{option} must be a list such as 1,4,16, from 1 to {largest:,}")
    return tuple(sorted(set(numbers)))


def _shown(profile: Profile) -> ProfilePart:
    return public(ProfilePart, profile, profile.config, profile.costs, points=points_of(profile.surface))


def points_of(surface: CostSurface) -> list[CostPoint]:
    """The costs at each place, as --json shows them."""
    return [
        public(CostPoint, point, break_even_length=surface.break_even_length(point.place)) for point in surface.points
    ]


def surface_table(title: str, surface: CostSurface, step_text: Callable[[Place], str]) -> Table:
    """The steps of both arms by load and context, as `step_text` writes them, and the length that pays for each."""
    depths = [depth for depth in surface.depths if depth]
    table = Table(title=title, title_justify="left")
    for name in ("load", "context", "prefill ms", "baseline ms", *(f"K {depth}" for depth in depths)):
        table.add_column(name, justify="right")
    for load in surface.loads:
        for context in surface.contexts:
            places = [Place(load, depth, context) for depth in depths]
            cells = [f"{step_text(place)} ms\npays from {surface.break_even_length(place):.2f}" for place in places]
            plain = Place(load, BASELINE, context)
            table.add_row(str(load), str(context), f"{surface.prefill_ms(plain):.1f}", step_text(plain), *cells)
    return table


def _print(profile: Profile) -> None:
    surface, config = profile.surface, profile.config
    title = f"{escape(config.config.name)} for {escape(', '.join(profile.endpoints))}"
    results.print(surface_table(title, surface, lambda place: f"{surface.step_ms(place):.2f}"))
    results.print(
        f"Medians of a step on {escape(config.device)} ({config.dtype}), and the tokens per step above which "
        f"speculation is faster; {'greedy' if profile.costs.key.is_greedy else 'sampled'} requests, engine in this "
        "process. Other engines have other costs.",
        style="dim",
    )
