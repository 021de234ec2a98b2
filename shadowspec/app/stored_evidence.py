"""The decisions in force, and why the database has none to show; every command that reads them says it alike."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from shadowspec.config import Config
from shadowspec.errors import NoDataError
from shadowspec.live.promise import unwatched_because
from shadowspec.rollout.check.answer import CheckInput, EndpointTerms, Question
from shadowspec.rollout.check.judge import read_check_input
from shadowspec.rollout.orders import unknown_endpoint
from shadowspec.store import Store
from shadowspec.text import plural
from shadowspec.types import FunnelCounter


def require_measured(store: Store) -> None:
    """Raise NoDataError where no endpoint has a measurement, and no decision shows an earlier one."""
    if not store.endpoints() and not store.decisions_at(datetime.now(UTC)):
        raise NoDataError("nothing has been measured yet: run `shadowspec run FILE` first")


def num_measured(store: Store, endpoints: Collection[str]) -> int:
    """Requests of these endpoints that were measured."""
    return sum(
        number
        for (endpoint, counter, _), number in store.funnel().items()
        if endpoint in endpoints and counter is FunnelCounter.MEASURED
    )


def no_decision(store: Store, endpoints: Collection[str]) -> NoDataError:
    """Why there is no decision on these endpoints, and which command to run."""
    require_measured(store)
    names = ", ".join(endpoints)
    number = num_measured(store, endpoints)
    if not number:
        return NoDataError(f"{names}: nothing has been measured yet: run `shadowspec run FILE` first")
    if all(store.folded_evidence(name).progress is None for name in endpoints):
        return NoDataError(f"{names}: nothing has been decided yet: run `shadowspec gate` first")
    return NoDataError(
        f"{names}: {plural(number, 'request')} measured, none counted yet, because their sessions may continue in "
        "unread records: resume `shadowspec run FILE` to the end of the file, then run `shadowspec gate`"
    )


def read_unwatched(config: Config, endpoint: str) -> dict[str, str]:
    """The replicas of an endpoint whose newest reading tells the live guard nothing, and why."""
    live = config.live_jobs(endpoint).get(endpoint)
    if live is None:
        return {}
    with Store.open(config.database_url) as store:
        known = store.live_replicas(endpoint)
    scrapes = {name: known[name].scrape for name in live.source.replicas if name in known}
    return {
        name: why
        for name, scrape in scrapes.items()
        if scrape is not None and (why := unwatched_because(scrape.counts, live.guard)) is not None
    }


def load_check_input(config: Config, question: Question, now: datetime) -> CheckInput:
    """The current decisions on the endpoint, configured or only measured.

    Raises:
        UsageError: neither the configuration nor the database knows the endpoint.
        NoDataError: nothing has been decided about it.
    """
    settings = config.endpoints.get(question.endpoint)
    with Store.open(config.database_url) as store:
        inputs = read_check_input(
            store, question.endpoint, settings.terms if settings else EndpointTerms(config.policy), now
        )
        if not inputs.decisions.latest:
            known = sorted({*config.endpoints, *store.endpoints()})
            if question.endpoint not in known:
                raise unknown_endpoint(question.endpoint, known)
            raise no_decision(store, [question.endpoint])
        return inputs
