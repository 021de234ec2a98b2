"""flagd's flags: valid by its published schema, and evaluated by its own evaluator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from jsonschema import Draft7Validator
from openfeature.contrib.tools.flagd.core import FlagdCore
from openfeature.evaluation_context import EvaluationContext
from referencing import Registry, Resource

from shadowspec.rollout.export import flagd
from shadowspec.rollout.export.load_schedule import endpoint_schedule, slice_schedules
from shadowspec.types import Decision, Override, Rollout, Stage, Verdict
from tests.rollout.export.worlds import NOW, PEERS, WEEK, config, decision, judged

CODE, CHAT, FRENCH = ("prompt_class=code,tier=gold", "prompt_class=chat,tier=gold", "prompt_class=chat,tier=free")
IS_CODE = {"prompt_class": "code", "tier": "gold"}
IS_CHAT = {"prompt_class": "chat", "tier": "gold"}
MIXED = [
    decision(Verdict.HOLD, load=4),
    decision(load=2, slice_key=CODE, of=config(5), number=21),
    decision(load=6, slice_key=CODE, of=config(3), number=22),
    decision(Verdict.DISABLE, load=2, slice_key=CHAT),
    decision(Verdict.HOLD, load=2, slice_key=FRENCH),
]

Ask = Callable[..., tuple[bool, int]]


def flags_of(
    decisions: Iterable[Decision], rollouts: Sequence[Rollout] = (), orders: Sequence[Override] = ()
) -> dict[str, Any]:
    currents = judged(decisions, rollouts=rollouts)
    names = sorted({current.decision.endpoint for current in currents})
    document = flagd.render([
        (endpoint_schedule(n, currents, overrides=orders), slice_schedules(n, currents, overrides=orders))
        for n in names
    ])  # fmt: skip
    return dict(json.loads(document.text))


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Evaluate both flags of an endpoint with flagd's own code; the defaults are such that they would be seen."""

    def evaluate(
        flags: dict[str, Any],
        context: dict[str, Any],
        *,
        key: str | None = None,
        at: float = NOW.timestamp(),
        endpoint: str = "chat",
    ) -> tuple[bool, int]:
        core = FlagdCore()
        core.set_flags(json.dumps(flags))
        given = EvaluationContext(key, context)
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda: at)
            is_on = core.resolve_boolean_value(f"{endpoint}.speculation", True, given)
            depth = core.resolve_integer_value(f"{endpoint}.num_speculative_tokens", 99, given)
        return is_on.value, depth.value

    return evaluate


def test_constrained_requests_are_not_asked_for_by_the_slices_without_that_label(ask: Ask) -> None:
    constrained = f"{CODE},output_constraint=json_schema"
    flags = flags_of([
        decision(load=2, slice_key=CODE, of=config(5), number=21),
        decision(Verdict.HOLD, load=2, slice_key=constrained),
    ])  # fmt: skip
    assert ask(flags, IS_CODE | {"concurrency": 2}) == (True, 5)
    assert ask(flags, IS_CODE | {"concurrency": 2, "output_constraint": "none"}) == (True, 5)
    assert ask(flags, IS_CODE | {"concurrency": 2, "output_constraint": "json_schema"}) == (False, 0)
    proven = flags_of([decision(load=2, slice_key=constrained, of=config(3), number=22)])
    assert ask(proven, IS_CODE | {"concurrency": 2, "output_constraint": "json_schema"}) == (True, 3)
    assert ask(proven, IS_CODE | {"concurrency": 2}) == (False, 0)
    schema().validate(flags)


def schema() -> Draft7Validator:
    flags, targeting = (
        json.loads((PEERS / "flagd" / f"{name}.json").read_text(encoding="utf-8")) for name in ("flags", "targeting")
    )
    # The published rules lie under $defs with nothing pointing at them; and draft 7 ignores an $id beside a $ref,
    # so that the reference from one file to the other stays relative.
    rules = {"$schema": targeting["$schema"], "$ref": "#/$defs/targeting", "$defs": targeting["$defs"]}
    registry: Registry[Any] = Registry().with_resource("./targeting.json", Resource.from_contents(rules))
    return Draft7Validator(flags, registry=registry)


PARTIAL = Rollout(
    "chat", 6, Stage.PARTIAL, "fp-draft_model-3", NOW, NOW, "advanced", "", depth_caps={"": 3}, share=0.25
)


@pytest.mark.parametrize("decisions", [MIXED, [decision()], [decision(Verdict.HOLD)], [*MIXED, decision(endpoint="b")]])
@pytest.mark.parametrize("rollouts", [(), (PARTIAL,)])
def test_flags_are_valid(decisions: list[Decision], rollouts: Sequence[Rollout]) -> None:
    assert not list(schema().iter_errors(flags_of(decisions, rollouts)))


def test_the_schema_refuses_what_is_wrong() -> None:
    flags = flags_of(MIXED)
    flags["flags"]["chat.speculation"]["targeting"] = {"if": ["on"]}
    assert list(schema().iter_errors(flags))
    flags["flags"]["chat.speculation"] |= {"targeting": {}, "variants": {"on": 1, "off": False}}
    assert list(schema().iter_errors(flags))


def test_only_an_enabled_slice_is_on(ask: Ask) -> None:
    flags = flags_of(MIXED)
    assert ask(flags, {**IS_CODE, "concurrency": 1}) == (True, 5)
    assert ask(flags, {**IS_CODE, "concurrency": 2}) == (True, 5)
    assert ask(flags, {**IS_CODE, "concurrency": 6}) == (True, 3)
    assert ask(flags, {**IS_CODE, "concurrency": 7}) == (False, 0), "above what was measured"
    assert ask(flags, {**IS_CHAT, "concurrency": 2}) == (False, 0)
    assert ask(flags, {"prompt_class": "chat", "tier": "free", "concurrency": 2}) == (False, 0)
    assert ask(flags, {"prompt_class": "code", "concurrency": 2}) == (False, 0), "half of a slice is none"
    assert ask(flags, {"concurrency": 2}) == (False, 0), "the endpoint itself is held"


def test_an_unknown_concurrency_gets_the_smallest_depth_of_all(ask: Ask) -> None:
    assert ask(flags_of(MIXED), IS_CODE) == (True, 3)
    held = [*MIXED, decision(Verdict.HOLD, load=8, slice_key=CODE)]
    assert ask(flags_of(held), IS_CODE) == (False, 0)


@pytest.mark.parametrize("concurrency", ["many", -1, 0.5, None, True, [9], {}])
def test_an_odd_concurrency_switches_nothing_on_that_is_not_on_everywhere(ask: Ask, concurrency: object) -> None:
    held = [*MIXED, decision(Verdict.HOLD, load=1, slice_key=CODE)]
    assert ask(flags_of(held), {**IS_CODE, "concurrency": concurrency}) == (False, 0)


def test_a_context_without_slice_labels_asks_about_the_endpoint(ask: Ask) -> None:
    flags = flags_of([decision(load=4), decision(Verdict.HOLD, load=4, slice_key=CODE)])
    assert ask(flags, {"concurrency": 4}) == (True, 4)
    assert ask(flags, {**IS_CODE, "concurrency": 4}) == (False, 0), "a held slice is off even so"
    assert ask(flags, {"tier": "gold", "concurrency": 4}) == (False, 0)


def test_an_export_that_nobody_renews_switches_itself_off(ask: Ask) -> None:
    flags = flags_of([decision(load=4)])
    expires_at = (NOW - timedelta(hours=2) + WEEK).timestamp()
    assert ask(flags, {"concurrency": 4}, at=expires_at - 1) == (True, 4)
    assert ask(flags, {"concurrency": 4}, at=expires_at) == (False, 0)


def test_a_share_is_drawn_by_key_and_alike_for_both_flags(ask: Ask) -> None:
    flags = flags_of([decision(load=6, of=config(3))], [PARTIAL])
    answers = [ask(flags, {"concurrency": 6}, key=f"user-{number}") for number in range(2_000)]
    assert set(answers) == {(True, 3), (False, 0)}
    share = sum(is_on for is_on, _ in answers) / len(answers)
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / 2_000) ** 0.5
    assert ask(flags, {"concurrency": 6}) == (False, 0), "without a key nobody can be drawn"


def test_flags_are_off_by_default_and_name_their_decisions() -> None:
    for name, flag in flags_of(MIXED)["flags"].items():
        assert flag["defaultVariant"] == "off"
        assert flag["variants"]["off"] in (False, 0)
        assert flag["metadata"] == {"endpoint": "chat", "decisions": "21,22", "engines": "engine/1"}, name


def test_endpoints_have_flags_of_their_own(ask: Ask) -> None:
    flags = flags_of([decision(load=4), decision(Verdict.HOLD, load=4, endpoint="batch")])
    assert set(flags["flags"]) == {
        f"{endpoint}.{name}" for endpoint in ("batch", "chat") for name in ("speculation", "num_speculative_tokens")
    }
    assert ask(flags, {"concurrency": 4}) == (True, 4)
    assert ask(flags, {"concurrency": 4}, endpoint="batch") == (False, 0)


def order(slice_key: str, load: int | None = None) -> Override:
    return Override(7, "chat", slice_key, load, Verdict.DISABLE, "incident", "ops", NOW)


def test_what_an_order_covers_is_off_though_nothing_was_decided_on_it(ask: Ask) -> None:
    by_class = [decision(load=4), decision(load=4, slice_key="prompt_class=code", number=2)]
    code = {"prompt_class": "code", "concurrency": 4}
    flags = flags_of(by_class)
    assert ask(flags, {**code, "tier": "gold"}) == (True, 4)
    assert ask(flags, {"tier": "gold", "concurrency": 4}) == (True, 4)
    flags = flags_of(by_class, orders=[order("tier=gold")])
    assert not list(schema().iter_errors(flags))
    assert ask(flags, {**code, "tier": "gold"}) == (False, 0)
    assert ask(flags, {"tier": "gold", "concurrency": 4}) == (False, 0)
    assert ask(flags, {"tier": "gold"}) == (False, 0)
    assert ask(flags, {"concurrency": 4}) == (False, 0), "who asks without labels may be of that slice"
    assert ask(flags, {**code, "tier": "free"}) == (True, 4)
    assert ask(flags, code) == (True, 4)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (4, {2: True, 3: False, 4: False, 5: False, 6: True, 0: False}),
        (6, {2: True, 4: False, 6: False, 0: False}),
        (9, {2: True, 4: True, 6: True, 7: False, 0: False}),
    ],
)
def test_an_order_for_one_load_reaches_to_the_loads_beside_it(ask: Ask, load: int, expected: dict[int, bool]) -> None:
    by_class = [decision(load=load, slice_key="prompt_class=code", number=load) for load in (2, 6)]
    flags = flags_of(by_class, orders=[order("tier=gold", load)])
    assert not list(schema().iter_errors(flags))
    gold = {"prompt_class": "code", "tier": "gold"}
    found = {size: ask(flags, {**gold, **({"concurrency": size} if size else {})})[0] for size in expected}
    assert found == expected
    assert ask(flags, {**gold, "tier": "free", "concurrency": 4})[0]


def comparisons(logic: Any) -> list[Any]:
    """The operands of every comparison in a rule."""
    if isinstance(logic, list):
        return [found for part in logic for found in comparisons(part)]
    if not isinstance(logic, dict):
        return []
    here = [operands for name, operands in logic.items() if name in ("<", "<=", ">", ">=")]
    return [*here, *(found for operands in logic.values() for found in comparisons(operands))]


def test_a_concurrency_is_compared_between_two_bounds() -> None:
    """With one bound the evaluator of JavaScript fails on a text: the caller's default would count."""
    by_class = [decision(load=load, slice_key="prompt_class=code", number=load) for load in (2, 6)]
    for orders in ([], [order("tier=gold", 4)], [order("tier=gold", 9)], [order("tier=gold")]):
        for flag in flags_of([*MIXED, *by_class], orders=orders)["flags"].values():
            compared = [operands for operands in comparisons(flag["targeting"]) if "concurrency" in str(operands)]
            assert compared
            assert {len(operands) for operands in compared} == {3}
