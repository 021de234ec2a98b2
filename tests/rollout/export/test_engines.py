"""Files for serving engines, read as each engine reads them (`worlds`), and against the fields that it has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from shadowspec.rollout.export.load_schedule import endpoint_schedule, engine_schedule
from shadowspec.servers.engines import vllm, with_engine_rules
from shadowspec.servers.engines.export_parts import Export
from shadowspec.servers.engines.llamacpp import LlamaCpp
from shadowspec.servers.engines.sglang import Sglang
from shadowspec.servers.engines.tensorrt_llm import TensorRtLlm
from shadowspec.servers.engines.vllm import Vllm
from shadowspec.types import (
    SERVED_BACKEND,
    SUFFIX_OPTIONS,
    Decision,
    DraftSampling,
    SpeculationConfig,
    Verdict,
    VerifyRule,
)
from shadowspec.types.served_methods import settings_text
from tests.rollout.export.worlds import (
    config,
    decision,
    fields,
    judged,
    llamacpp_depths,
    llamacpp_flags,
    methods,
    sglang_depths,
    tensorrt_depths,
    vllm_depths,
)

TWO_DEPTHS = [decision(load=2, of=config(5), number=11), decision(load=6, of=config(3), number=12)]
WITH_A_GAP = [decision(load=2), decision(Verdict.HOLD, load=4), decision(load=8)]
LATE = [decision(Verdict.HOLD, load=1), decision(load=4)]
RISING = [decision(load=1, of=config(2)), decision(load=4, of=config(5))]
EAGLE = config(4, proposer="eagle3", draft="org/eagle")
SUFFIX = config(8, proposer="suffix", rule=VerifyRule.GREEDY_DRAFT, suffix_decoding_max_tree_depth=32)
ADAPTIVE = config(4, draft_confidence_threshold=0.4)


def exported_vllm(decisions: list[Decision]) -> tuple[Any, Export]:
    document = Vllm().export(endpoint_schedule("chat", judged(decisions)), "")
    return json.loads(document.text), document


def exported_sglang(decisions: list[Decision]) -> tuple[dict[str, Any], Any, Export]:
    document = Sglang().export(engine_schedule("chat", judged(decisions), Sglang()), "/etc/adaptive.json")
    beside = document.beside.get(Sglang.beside_suffix)
    return yaml.safe_load(document.text), None if beside is None else json.loads(beside), document


def exported_tensorrt(decisions: list[Decision]) -> tuple[dict[str, Any], Export]:
    document = TensorRtLlm().export(endpoint_schedule("chat", judged(decisions)), "")
    return yaml.safe_load(document.text), document


def exported_llamacpp(decisions: list[Decision]) -> tuple[dict[str, str], Export]:
    document = LlamaCpp().export(engine_schedule("chat", judged(decisions), LlamaCpp()), "")
    return llamacpp_flags(document.text), document


def test_vllm_has_every_field_that_is_written() -> None:
    before, known = (fields(peer)["SpeculativeConfig"] for peer in ("vllm-0.32", "vllm"))
    for rule in (VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT):
        value = exported_vllm([decision(of=config(rule=rule))])[0]
        assert set(value) <= set(known) & set(before)
        assert value["method"] in methods("vllm") & methods("vllm-0.32")
    ngram = exported_vllm([decision(of=config(proposer="ngram", rule=VerifyRule.EXACT_MATCH))])[0]
    assert set(ngram) <= set(known) & set(before)
    assert (ngram["prompt_lookup_min"], ngram["prompt_lookup_max"]) == (2, 4)
    suffix = exported_vllm([decision(of=SUFFIX)])[0]
    assert set(suffix) <= set(known) & set(before)
    assert {"ngram", "suffix", "eagle3"} <= methods("vllm") & methods("vllm-0.32")
    assert set(vllm.GONE_SINCE) == methods("vllm-0.32") - methods("vllm")
    for name in SUFFIX_OPTIONS:
        if name in known:  # vLLM's own default is ours
            assert float(known[name]["default"]) == getattr(config(proposer="suffix"), name)
            assert suffix[name] == getattr(SUFFIX, name)
    assert known["num_speculative_tokens_per_batch_size"]["type"] == "list[tuple[int, int, int]] | None"


@pytest.mark.parametrize(
    ("rule", "method"),
    [
        (VerifyRule.REJECTION, "probabilistic"),
        (VerifyRule.GREEDY_DRAFT, "greedy"),
        (VerifyRule.EXACT_MATCH, "greedy"),  # our draft does not sample under it, so that the two accept alike
        (VerifyRule.GREEDY, "greedy"),
    ],
)
def test_vllm_samples_the_draft_as_it_was_measured(rule: VerifyRule, method: str) -> None:
    assert exported_vllm([decision(of=config(rule=rule))])[0]["draft_sample_method"] == method


def test_vllm_runs_the_measured_depth_at_each_batch_size_and_none_beyond() -> None:
    assert vllm_depths(exported_vllm(TWO_DEPTHS)[0], 10) == [5, 5, 3, 3, 3, 3, 0, 0, 0, 0]
    assert vllm_depths(exported_vllm(WITH_A_GAP)[0], 10) == [4, 4, 0, 0, 0, 0, 0, 4, 0, 0]
    assert vllm_depths(exported_vllm(LATE)[0], 5) == [0, 0, 0, 4, 0]
    assert vllm_depths(exported_vllm([decision(load=2)])[0], 10_000)[2:] == [0] * 9_998


def test_vllm_keeps_suffix_drafts_within_what_was_measured() -> None:
    value, document = exported_vllm([decision(load=2, of=SUFFIX), decision(load=6, of=SUFFIX)])
    assert vllm_depths(value, 100, document.remarks) == [8] * 6
    assert vllm.SUFFIX in document.remarks
    shallow = replace(SUFFIX, name="suffix-5", num_speculative_tokens=5)
    value, document = exported_vllm([decision(load=2, of=SUFFIX), decision(load=6, of=shallow, number=2)])
    assert vllm_depths(value, 100, document.remarks) == [8, 8]
    assert any("above batch size 2 cannot be expressed" in remark for remark in document.remarks)
    late, document = exported_vllm([decision(Verdict.HOLD, load=1, of=SUFFIX), decision(load=4, of=SUFFIX)])
    assert late is None
    assert "speculation is off at batch size 1, which cannot be expressed: exported as off" in document.remarks
    forgetful = replace(SUFFIX, suffix_memory_tokens=0)
    assert exported_vllm([decision(of=forgetful)])[0]["suffix_decoding_max_cached_requests"] == 0


def test_no_engine_is_given_a_draft_model_that_stops_by_its_confidence() -> None:
    """None of them has the option: a draft that always goes on is another one than was measured."""
    remark = "has no counterpart of the measured draft_confidence_threshold: exported as off"
    for value, document in (exported_vllm([decision(of=ADAPTIVE)]), exported_tensorrt([decision(of=ADAPTIVE)])):
        assert value in (None, {"speculative_config": None})
        assert any(each.endswith(remark) for each in document.remarks)
    flags, _, document = exported_sglang([decision(of=ADAPTIVE)])
    assert flags == {}
    assert any(each.endswith(remark) for each in document.remarks)
    flags, document = exported_llamacpp([decision(of=replace(ADAPTIVE, verify_rule=VerifyRule.GREEDY_DRAFT))])
    assert flags == {"--spec-type": "none"}
    assert any(each.endswith(remark) for each in document.remarks)
    for name in ("vllm", "sglang", "tensorrt_llm"):
        assert not [field for known in fields(name).values() for field in known if "draft_confidence" in field]


def test_options_make_other_drafts() -> None:
    """A server runs one: those that differ in an option are not mixed."""
    other = config(6, name="other", proposer="suffix", rule=VerifyRule.GREEDY_DRAFT)
    schedule = endpoint_schedule("chat", judged([decision(load=2, of=SUFFIX), decision(load=6, of=other)]))
    assert len({each.num_speculative_tokens for each in schedule.ranges} - {0}) == 1


@pytest.mark.parametrize(
    ("of", "option"),
    [
        (
            config(proposer="ngram", rule=VerifyRule.GREEDY_DRAFT),
            "ngram_occurrence = latest, while vLLM's rule is latest_filled",
        ),
        (config(), "draft_sampling = request, while vLLM's rule is temperature"),
    ],
)
def test_an_export_says_where_the_measured_drafts_follow_another_rule(of: SpeculationConfig, option: str) -> None:
    """Acceptance does not carry over there; by the engine's own rule, or measured through a server, it does."""
    remarks = exported_vllm([decision(of=of)])[1].remarks
    assert [each for each in remarks if option in each and "acceptance does not carry over" in each]
    for same in (with_engine_rules(of, "vllm 0.32"), replace(of, backend=SERVED_BACKEND)):
        value, document = exported_vllm([decision(of=same)])
        assert value is not None
        shared = {vllm.DATA_PARALLEL, vllm.SCHEDULE, vllm.REFUSED, vllm.SHORTER}
        assert not set(document.remarks) - shared
        assert (vllm.REFUSED in document.remarks) is not same.is_served, "a server shows such requests as failed"
        assert (vllm.SHORTER in document.remarks) is (same.proposer == "draft_model")


def test_sglang_and_tensorrt_say_where_the_measured_drafts_follow_another_rule() -> None:
    said = "while SGLang's rule is temperature: acceptance does not carry over for requests with top_p"
    assert any(said in each for each in exported_sglang([decision()])[2].remarks)
    by_temperature = config(draft_sampling=DraftSampling.TEMPERATURE)
    assert not any("carry over" in each for each in exported_sglang([decision(of=by_temperature)])[2].remarks)
    assert not any("carry over" in each for each in exported_tensorrt([decision()])[1].remarks)
    said = "draft_sampling = temperature, while TensorRT-LLM's rule is request"
    assert any(said in each for each in exported_tensorrt([decision(of=by_temperature)])[1].remarks)


MTP = {"method": "mtp", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2, "nested": {"a": [1, {"b": 0.5}]}}
ON_VLLM, ON_SGLANG, ON_TENSORRT = "vllm/0.32.0", "sglang/0.5.9", "tensorrt_llm/1.4.0rc1"


def served(name: str, /, depth: int = 3, **settings: Any) -> SpeculationConfig:
    """A method of a server, with what the server was started with."""
    drafting = config(depth, proposer=name, draft=None, rule=VerifyRule.SERVER, backend="openai")
    return replace(drafting, speculative_config=settings_text(settings))


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        (served("mtp", **MTP), MTP),
        (served("mtp", **{"draft_tensor_parallel_size": 2}),
         {"method": "mtp", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}),
        (replace(served("dflash", 7), draft="org/dflash"),
         {"method": "dflash", "num_speculative_tokens": 7, "model": "org/dflash"}),
        (served("mtp", method="deepseek_mtp"), {"method": "deepseek_mtp", "num_speculative_tokens": 3}),
        (served("ngram", prompt_lookup_max=6),
         {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 6}),
        (served("suffix"), {"method": "suffix", "num_speculative_tokens": 3}),
        (served("eagle3", model="org/eagle", parallel_drafting=True),
         {"method": "eagle3", "num_speculative_tokens": 3, "model": "org/eagle", "parallel_drafting": True}),
        (served("later", 2), {"method": "later", "num_speculative_tokens": 2}),
    ],
)  # fmt: skip
def test_vllm_gets_a_servers_method_as_it_went_in(of: SpeculationConfig, wanted: dict[str, Any]) -> None:
    values, document = exported_vllm([decision(of=of, load=4, engine=ON_VLLM), decision(of=of, load=8, engine=ON_VLLM)])
    assert values == wanted
    assert "run the server with --max-num-seqs 8" in document.remarks[0]


def test_a_schedule_that_ends_in_no_drafts_needs_no_limit_of_the_batch() -> None:
    ending = {"num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 2**31 - 1, 0]]}
    for last, is_limited in ((4, False), (2, True)):  # measured as far as it drafts, and not
        _, document = exported_vllm([decision(of=served("ngram", **ending), load=last, engine=ON_VLLM)])
        assert any("--max-num-seqs" in remark for remark in document.remarks) is is_limited


def test_a_servers_method_goes_to_its_engine_alone() -> None:
    of = served("mtp", **MTP)
    values, document = exported_vllm([decision(of=of, engine=ON_SGLANG)])
    assert (values, document.remarks) == (
        None, ("mtp is a method of sglang, not of vLLM: exported as off",)
    )  # fmt: skip
    assert exported_vllm([decision(of=of, engine="unknown")])[0] is None
    assert exported_sglang([decision(of=of, engine=ON_VLLM)])[0] == {}
    text, document = exported_tensorrt([decision(of=of, engine=ON_VLLM)])
    assert text == {"speculative_config": None}
    assert document.remarks == ("mtp is a method of vllm, not of TensorRT-LLM: exported as off",)


def test_a_servers_method_is_off_where_it_is_not_on_from_batch_size_1_or_was_not_enabled() -> None:
    of = served("mtp", **MTP)
    late = [decision(Verdict.HOLD, load=1, of=of, engine=ON_VLLM), decision(load=4, of=of, engine=ON_VLLM)]
    assert exported_vllm(late)[0] is None
    assert exported_vllm([decision(Verdict.DISABLE, of=of, engine=ON_VLLM)])[0] is None
    assert exported_sglang([decision(Verdict.HOLD, load=1, of=of, engine=ON_SGLANG), decision(load=4, of=of,
                           engine=ON_SGLANG)])[0] == {}  # fmt: skip


def test_sglang_gets_a_servers_method_as_it_went_in() -> None:
    given = {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 3, "speculative-eagle-topk": 1,
             "speculative-draft-model-path": "org/eagle", "speculative-num-draft-tokens": 4}  # fmt: skip
    flags, beside, document = exported_sglang([decision(of=served("EAGLE3", **given), load=8, engine=ON_SGLANG)])
    assert flags == {**given, "max-running-requests": 8}
    assert (beside, "max-running-requests 8" in document.remarks[0]) == (None, True)
    bare = exported_sglang([decision(of=served("eagle3"), engine=ON_SGLANG)])[0]
    assert bare == {"speculative-algorithm": "eagle3", "speculative-num-steps": 3, "max-running-requests": 4}
    underscored = {"speculative_num_steps": 3, "speculative_algorithm": "NEXTN"}
    flags = exported_sglang([decision(of=served("NEXTN", **underscored), engine=ON_SGLANG)])[0]
    assert flags == {**underscored, "max-running-requests": 4}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"speculative-algorithm": "DFLASH", "speculative-num-draft-tokens": 8}),
        ({"speculative-dflash-block-size": 8, "speculative-num-steps": 1},
         {"speculative-algorithm": "DFLASH", "speculative-dflash-block-size": 8}),
    ],
)  # fmt: skip
def test_a_block_s_depth_is_said_to_sglang_by_the_window_that_it_verifies(
    given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    flags = exported_sglang([decision(of=served("DFLASH", 7, **given), engine=ON_SGLANG)])[0]
    assert flags == {**wanted, "max-running-requests": 4}


def test_tensorrt_gets_a_servers_method_as_it_went_in() -> None:
    given = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "org/eagle"}
    text, document = exported_tensorrt([decision(of=served("eagle3", **given), load=8, engine=ON_TENSORRT)])
    assert text == {"max_batch_size": 8, "speculative_config": given}
    assert "max_batch_size 8" in document.remarks[0]
    bare = exported_tensorrt([decision(of=served("MTP"), engine=ON_TENSORRT)])[0]["speculative_config"]
    assert bare == {"decoding_type": "MTP", "max_draft_len": 3}


def test_vllm_off_is_null() -> None:
    value, document = exported_vllm([decision(Verdict.HOLD)])
    assert value is None
    assert document.text == "null\n"


def test_vllm_runs_heads_as_they_were_measured_or_not_at_all() -> None:
    greedy = {
        proposer: config(4, proposer=proposer, draft="org/heads", rule=VerifyRule.GREEDY_DRAFT)
        for proposer in ("medusa", "eagle3", "mlp_speculator")
    }
    eagle, _ = exported_vllm([decision(of=greedy["eagle3"])])
    assert (eagle["method"], eagle["model"], eagle["draft_sample_method"]) == ("eagle3", "org/heads", "greedy")
    for proposer in ("medusa", "mlp_speculator"):  # 0.33 has neither
        value, document = exported_vllm([decision(of=greedy[proposer])])
        assert value is None
        why = f"vLLM has no counterpart of the measured proposer {proposer}"
        assert any(why in remark for remark in document.remarks)


def test_a_method_that_later_versions_lack_is_exported_for_the_one_that_was_measured() -> None:
    of = replace(config(4, proposer="medusa"), backend=SERVED_BACKEND, speculative_config="{}", draft=None)
    value, document = exported_vllm([decision(of=of, engine="vllm/0.32.0")])
    assert value["method"] == "medusa"
    assert "vLLM 0.33 and later have no method medusa: run the version measured" in document.remarks


def test_vllm_drafts_the_arg_max_of_shared_tokens() -> None:
    of = config(4, proposer="heterogeneous_draft_model", draft="org/other", rule=VerifyRule.GREEDY_DRAFT)
    value, document = exported_vllm([decision(of=of)])
    assert set(value) <= set(fields("vllm")["SpeculativeConfig"])
    assert (value["method"], value["model"], value["use_heterogeneous_vocab"]) == ("draft_model", "org/other", True)
    assert "draft_sample_method" not in value
    assert vllm.SHARED_TOKENS in document.remarks
    value, document = exported_vllm([decision(of=replace(of, verify_rule=VerifyRule.REJECTION))])
    assert value is None
    assert document.remarks == (vllm.HETEROGENEOUS_SAMPLED,)
    flags, _, _ = exported_sglang([decision(of=of)])
    assert flags == {}
    assert exported_tensorrt([decision(of=of)])[0] == {"speculative_config": None}


def test_vllm_warns_of_data_parallelism() -> None:
    assert vllm.DATA_PARALLEL in exported_vllm([decision()])[1].remarks


def test_sglang_has_every_flag_that_is_written() -> None:
    known = {name for namespace in fields("sglang").values() for name in namespace}
    for of in (config(), config(rule=VerifyRule.GREEDY_DRAFT), EAGLE):
        flags, _, _ = exported_sglang([decision(of=of)])
        assert {name.replace("-", "_") for name in flags} <= known


def test_sglang_keeps_an_algorithm_that_cannot_adapt_within_what_was_measured() -> None:
    flags, adaptive, document = exported_sglang(TWO_DEPTHS)
    assert flags["speculative-algorithm"] == "STANDALONE"
    assert adaptive is None
    assert "speculative-adaptive" not in flags, "it would be dropped, and the full depth run everywhere"
    assert sglang_depths(flags, adaptive, 100) == [5, 5]
    assert flags["speculative-num-draft-tokens"] == 6
    assert document.text.startswith("# chat: decisions 11; measured on engine/1\n")
    assert any("above batch size 2" in remark for remark in document.remarks)


def test_sglang_takes_the_one_depth_that_reaches_furthest() -> None:
    shallow = [decision(load=load, of=config(3), lower=1.1, number=load) for load in (2, 6)]
    flags, adaptive, _ = exported_sglang([*TWO_DEPTHS, *shallow])
    assert sglang_depths(flags, adaptive, 100) == [3] * 6
    assert "speculative-adaptive" not in flags
    harmed = decision(Verdict.DISABLE, load=6, slice_key="prompt_class=chat", of=config(3))
    assert sglang_depths(*exported_sglang([*TWO_DEPTHS, *shallow, harmed])[:2], 100) == [5, 5]


def test_sglang_adapts_by_batch_size_where_it_can() -> None:
    deep, shallow = (
        SpeculationConfig(f"e{k}", "org/target", "org/eagle", "eagle3", k, VerifyRule.GREEDY_DRAFT) for k in (5, 3)
    )
    flags, adaptive, _ = exported_sglang([decision(load=2, of=deep), decision(load=6, of=shallow, number=2)])
    assert flags["speculative-adaptive-config"] == "/etc/adaptive.json"
    assert sglang_depths(flags, adaptive, 100) == [5, 5, 3, 3, 3, 3]
    flags["max-running-requests"] = 9
    assert sglang_depths(flags, adaptive, 9) == [5, 5, 3, 3, 3, 3, 0, 0, 0]
    padded = sglang_depths(flags, adaptive, 9, graphs=(1, 2, 4, 8))
    assert padded == [5, 5, 3, 3, 0, 0, 0, 0, 0], "rounded up to a graph it may be off, but never on where it is not"
    assert adaptive["shadowspec_decisions"] == [1, 2]


def test_sglang_samples_the_draft_as_it_was_measured() -> None:
    assert exported_sglang([decision()])[0]["speculative-use-rejection-sampling"] is True
    flags, _, _ = exported_sglang([decision(of=config(rule=VerifyRule.GREEDY_DRAFT))])
    assert "speculative-use-rejection-sampling" not in flags


@pytest.mark.parametrize(
    "decisions", [LATE, [decision(Verdict.DISABLE)], [decision(of=config(proposer="ngram"))], [decision(of=SUFFIX)]]
)
def test_sglang_is_off_where_it_cannot_say_it(decisions: list[Decision]) -> None:
    assert exported_sglang(decisions)[0] == {}


def test_sglang_leaves_out_what_lies_behind_a_gap() -> None:
    flags, adaptive, document = exported_sglang(WITH_A_GAP)
    assert sglang_depths(flags, adaptive, 100) == [4, 4]
    assert any("above batch size 2" in remark for remark in document.remarks)


def test_tensorrt_has_every_field_that_is_written() -> None:
    known = fields("tensorrt_llm")
    for of, kind in ((config(), "DraftTargetDecodingConfig"), (EAGLE, "Eagle3DecodingConfig")):
        spec = exported_tensorrt([decision(of=of)])[0]["speculative_config"]
        assert set(spec) <= set(known["DecodingBaseConfig"]) | set(known[kind])
        assert known[kind]["decoding_type"]["type"] == f"Literal['{spec['decoding_type']}']"


@pytest.mark.parametrize("keys_are_largest", [True, False])
@pytest.mark.parametrize("floor", [0, 1])
def test_tensorrt_reads_the_same_in_every_version(keys_are_largest: bool, floor: int) -> None:
    document, _ = exported_tensorrt(TWO_DEPTHS)
    assert tensorrt_depths(document, 100, keys_are_largest=keys_are_largest, floor=floor) == [5, 5, 3, 3, 3, 3]
    document["max_batch_size"] = 9
    beyond = tensorrt_depths(document, 9, keys_are_largest=keys_are_largest, floor=floor)[6:]
    assert beyond == [floor] * 3, "off, where the version can be"


def test_tensorrt_says_a_single_depth_by_max_concurrency() -> None:
    document, _ = exported_tensorrt([decision(load=8)])
    spec = document["speculative_config"]
    assert spec["max_concurrency"] == document["max_batch_size"] == 8
    assert "draft_len_schedule" not in spec


def test_tensorrt_verifies_as_it_was_measured() -> None:
    assert exported_tensorrt([decision()])[0]["speculative_config"]["use_rejection_sampling"] is True
    other = exported_tensorrt([decision(of=config(rule=VerifyRule.GREEDY_DRAFT))])[0]["speculative_config"]
    assert "use_rejection_sampling" not in other


def test_tensorrt_never_asks_for_its_own_acceptance_gate() -> None:
    spec = exported_tensorrt([decision()])[0]["speculative_config"]
    assert not [name for name in spec if name.startswith("acceptance")]


def test_tensorrt_leaves_out_a_depth_above_the_first() -> None:
    document, exported = exported_tensorrt(RISING)
    assert tensorrt_depths(document, 100, keys_are_largest=True, floor=0) == [2]
    assert any("above batch size 1" in remark for remark in exported.remarks)


@pytest.mark.parametrize(
    "decisions", [LATE, [decision(Verdict.HOLD)], [decision(of=config(proposer="ngram"))], [decision(of=SUFFIX)]]
)
def test_tensorrt_is_off_where_it_cannot_say_it(decisions: list[Decision]) -> None:
    assert exported_tensorrt(decisions)[0] == {"speculative_config": None}


def test_llama_cpp_gets_a_servers_method_as_it_went_in() -> None:
    engine = "llama.cpp/b1-0c1e570"
    of = served("draft-mtp", **{"--spec-type": "draft-mtp", "spec-draft-n-max": 3, "spec-draft-p-min": 0.5})
    flags, document = exported_llamacpp([decision(of=of, load=2, engine=engine)])
    assert flags == {
        "--spec-type": "draft-mtp", "--spec-draft-n-max": "3", "--spec-draft-p-min": "0.5", "--parallel": "2",
    }  # fmt: skip
    assert document.remarks == ("--parallel 2 keeps the server at batch sizes that were measured",)
    bare = replace(served("draft-dflash"), draft="draft.gguf")
    flags, _ = exported_llamacpp([decision(of=bare, load=2, engine=engine)])
    assert flags == {
        "--spec-type": "draft-dflash", "--spec-draft-n-max": "3", "--spec-draft-model": "draft.gguf", "--parallel": "2",
    }  # fmt: skip
    assert exported_llamacpp([decision(of=of, engine=ON_VLLM)])[0] == {"--spec-type": "none"}


COMPARED = config(5, rule=VerifyRule.EXACT_MATCH, draft="draft.gguf")
LOOKED_UP = config(4, proposer="ngram", rule=VerifyRule.EXACT_MATCH, draft=None, ngram_min=3, ngram_max=3)


def test_llama_cpp_has_every_argument_that_is_written() -> None:
    known = fields("llamacpp")
    for of in (COMPARED, LOOKED_UP, replace(EAGLE, verify_rule=VerifyRule.GREEDY_DRAFT)):
        flags, document = exported_llamacpp([decision(of=of)])
        assert not [name for name in flags if name not in known["arguments"] or known["arguments"][name]["is_removed"]]
        assert flags["--spec-type"] in known["spec_types"]
        assert document.text.startswith("# chat: decisions 1; measured on ")
    assert exported_llamacpp([])[0] == {"--spec-type": "none"}


def test_llama_cpp_drafts_as_was_measured() -> None:
    flags, document = exported_llamacpp([decision(load=8, of=COMPARED)])
    assert flags == {
        "--spec-type": "draft-simple", "--spec-draft-model": "draft.gguf", "--spec-draft-n-max": "5",
        "--spec-draft-n-min": "0", "--spec-draft-p-min": "0", "--parallel": "8",
    }  # fmt: skip
    assert document.remarks[-1] == "--parallel 8 keeps the server at batch sizes that were measured"
    assert "llama.cpp's rule is temperature" in document.remarks[0]
    follows = with_engine_rules(COMPARED, "llama.cpp")
    assert len(exported_llamacpp([decision(load=8, of=follows)])[1].remarks) == 1
    folder = replace(COMPARED, draft="models/draft")
    assert any("takes a GGUF file" in each for each in exported_llamacpp([decision(of=folder)])[1].remarks)
    flags, _ = exported_llamacpp([decision(load=2, of=LOOKED_UP)])
    assert flags == {
        "--spec-type": "ngram-simple", "--spec-ngram-simple-size-n": "3", "--spec-ngram-simple-size-m": "4",
        "--parallel": "2",
    }  # fmt: skip


def test_llama_cpp_takes_the_one_depth_that_reaches_furthest() -> None:
    deep, shallow = COMPARED, replace(COMPARED, num_speculative_tokens=3)
    both = [decision(load=2, of=deep, number=11), decision(load=6, of=shallow, number=12)]
    flags, document = exported_llamacpp(both)
    assert llamacpp_depths(flags, 100) == [5, 5]
    assert any("above batch size 2" in each for each in document.remarks)
    assert llamacpp_depths(exported_llamacpp([*both, decision(load=2, of=shallow, number=13)])[0], 100) == [3] * 6


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (config(4), "rejection was measured: exported as off"),
        (replace(LOOKED_UP, ngram_min=2), "one length of n-grams, and 2 to 3 were measured"),
        (replace(LOOKED_UP, num_speculative_tokens=2), "no fewer tokens than it looks up (3), and 2 were measured"),
        (SUFFIX, "no counterpart of the measured proposer suffix"),
    ],
)
def test_llama_cpp_is_off_where_it_cannot_draft_like_that(of: SpeculationConfig, says: str) -> None:
    flags, document = exported_llamacpp([decision(of=of)])
    assert flags == {"--spec-type": "none"}
    assert any(says in each for each in document.remarks)


@pytest.mark.parametrize("verdict", [Verdict.HOLD, Verdict.DISABLE])
def test_llama_cpp_is_off_where_nothing_is_on(verdict: Verdict) -> None:
    assert exported_llamacpp([decision(verdict, of=COMPARED)])[0] == {"--spec-type": "none"}
    late = [decision(Verdict.HOLD, load=1, of=COMPARED), decision(load=4, of=COMPARED)]
    assert exported_llamacpp(late)[0] == {"--spec-type": "none"}


def test_no_name_can_end_a_comment_or_a_value() -> None:
    nasty = 'org/a"\n# b: [1]\nspeculative_config: {x: 1}'
    of = config(draft=nasty)
    document, _ = exported_tensorrt([decision(of=of, endpoint="chat")])
    assert document["speculative_config"]["speculative_model"] == nasty
    assert exported_sglang([decision(of=of)])[0]["speculative-draft-model-path"] == nasty
    flags, document = exported_llamacpp([decision(of=replace(COMPARED, draft=nasty))])
    assert flags["--spec-draft-model"] == nasty
    text = TensorRtLlm().export(endpoint_schedule("a\nb: c", []), "").text
    assert yaml.safe_load(text) == {"speculative_config": None}
