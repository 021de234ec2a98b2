"""Pages of metrics on real sockets: what is read of three engines, and what each thing that goes wrong ends in."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import ConfigError
from shadowspec.live.live_source import LiveSource, replica_name
from shadowspec.live.scrape import MAX_PAGE_BYTES, scrape_all
from shadowspec.servers.client import run_async
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.metrics_page import MetricsPage, PageError, parse
from shadowspec.types import COMPUTE, END_TO_END, LATENCIES, QUEUE, Buckets, FailedScrape, LiveCounts, LiveScrape
from tests.servers.metric_server import Production, producing
from tests.services import PATIENCE_S

PAGE = Path(__file__).parents[1] / "data" / "live" / "vllm-0.32.0.txt"
SGLANG_PAGE = PAGE.with_name("sglang-0.5.23.txt")
LLAMACPP_PAGE = PAGE.with_name("llamacpp-0c1e570.txt")
SGLANG = """\
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 800.0
sglang:generation_tokens_total{model_name="m"} 640.0
sglang:spec_verify_calls_total{model_name="m"} 250.0
sglang:num_requests_total{model_name="m"} 10.0
sglang:num_aborted_requests_total{model_name="m"} 2.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 150.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 50.0
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{engine_type="unified",model_name="m",tp_rank="0"} 2.52
sglang:e2e_request_latency_seconds_bucket{le="0.1",model_name="m"} 3.0
sglang:e2e_request_latency_seconds_bucket{le="+Inf",model_name="m"} 10.0
sglang:inter_token_latency_seconds_bucket{le="+Inf",model_name="m"} 630.0
sglang:request_time_per_output_token_seconds_bucket{le="0.05",model_name="m"} 4.0
sglang:request_time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 10.0
"""
LLAMACPP = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 600
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 200
llamacpp:tokens_predicted_total 640
llamacpp:spec_decode_num_draft_tokens_total 1.23457e+06
llamacpp:spec_decode_num_accepted_tokens_total 1.1e+06
llamacpp:spec_decode_num_drafts_total 617284
llamacpp:requests_processing 2
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 600001
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 500002
"""
TENSORRT_LLM = """\
trtllm_request_success_total{engine_type="pytorch",finished_reason="stop",model_name="m"} 6.0
trtllm_request_success_total{engine_type="pytorch",finished_reason="length",model_name="m"} 4.0
trtllm_request_error_total{engine_type="pytorch",http_code="500",model_name="m"} 2.0
trtllm_request_error_total{engine_type="pytorch",http_code="400",model_name="m"} 9.0
trtllm_spec_decode_num_draft_tokens_total{engine_type="pytorch",model_name="m"} 520.0
trtllm_spec_decode_num_accepted_tokens_total{engine_type="pytorch",model_name="m"} 350.0
trtllm_prompt_tokens_total{engine_type="pytorch",model_name="m"} 800.0
trtllm_generation_tokens_total{engine_type="pytorch",model_name="m"} 640.0
trtllm_prompt_cached_tokens_total{engine_type="pytorch",model_name="m"} 200.0
trtllm_spec_decode_drafted_tokens_total{engine_type="pytorch",model_name="m",token_position="0"} 250.0
trtllm_spec_decode_drafted_tokens_total{engine_type="pytorch",model_name="m",token_position="1"} 240.0
trtllm_spec_decode_accepted_tokens_total{engine_type="pytorch",model_name="m",token_position="0"} 200.0
trtllm_spec_decode_accepted_tokens_total{engine_type="pytorch",model_name="m",token_position="1"} 130.0
"""


OPENMETRICS = {"Content-Type": "application/openmetrics-text; version=1.0.0; charset=utf-8"}


@pytest.fixture
def production() -> Iterator[Production]:
    watched = Production()
    with producing(watched):
        yield watched


def source(*replicas: Production, **changes: Any) -> LiveSource:
    return replace(LiveSource(tuple(replica.url for replica in replicas), "m", "vllm", timeout_s=2.0), **changes)


def test_pages_are_read_within_a_running_loop_too(production: Production) -> None:
    async def within() -> list[LiveScrape | FailedScrape]:
        return list(scrape_all(source(production)))

    (found,) = run_async(within())
    assert isinstance(found, LiveScrape)


def read_as(model: str, text: str) -> MetricsPage:
    return parse(text, ENGINES["vllm"].metrics, model)


def read(text: str, engine: str = "vllm") -> MetricsPage:
    return parse(text, ENGINES[engine].metrics, "m")


def test_what_vllm_counts(production: Production) -> None:
    production.started_at = 1_800_000_000.5
    production.serve(drafts=100, rate=0.8)
    (scrape,) = scrape_all(source(production))
    assert isinstance(scrape, LiveScrape)
    assert scrape.num_running is None, "the page does not say"
    assert scrape.replica == replica_name(production.url) == production.url.removeprefix("http://")
    assert scrape.started_at == datetime.fromtimestamp(1_800_000_000.5, UTC)
    assert abs((datetime.now(UTC) - scrape.scraped_at).total_seconds()) < PATIENCE_S
    assert scrape.counts == LiveCounts(
        num_drafts=100,
        num_draft_tokens=400,
        num_accepted_tokens=150,
        num_accepted_tokens_per_pos=(80, 40, 20, 10),
        num_output_tokens=260,
        num_requests=10,
        num_prompt_tokens=1_000,
        num_cached_tokens=250,
        latencies={"end_to_end_s": Buckets((0.1, 0.5, 1.0), (0, 9, 1, 0))},
        num_failed_requests=0,
    )
    production.failed, production.seconds = 3, 4.25
    (again,) = scrape_all(source(production))
    assert isinstance(again, LiveScrape)
    assert (again.counts.num_requests, again.counts.num_failed_requests) == (13, 3)
    assert again.counts.latencies["end_to_end_s"].sum_us == 4_250_000
    assert again.series == scrape.series, "what was read before the sums goes on as the same series"


def test_both_pools_are_read_and_only_their_pages(production: Production) -> None:
    plain = Production(depth=None)
    with producing(plain):
        pools = source(production, plain_urls=(plain.url,))
        assert [each.replica for each in scrape_all(pools)] == [*pools.replicas, *pools.plain_replicas]
        assert (len(production.headers), len(plain.headers)) == (1, 1)


def test_pools_that_cannot_be_compared_are_refused() -> None:
    urls = ("http://a/metrics",)
    with pytest.raises(ValueError, match="metrics_urls and plain_metrics_urls: the same URL is listed twice"):
        LiveSource(urls, "m", plain_urls=urls)
    with pytest.raises(ValueError, match=r"plain_metrics_urls: llama\.cpp counts no times"):
        LiveSource(urls, "m", "llama.cpp", plain_urls=("http://b/metrics",))


def test_a_page_as_vllm_sends_it() -> None:
    """Of vLLM 0.32.0 with the bundled pair at K = 4: every figure as grep finds it there."""
    text = PAGE.read_text(encoding="utf-8")
    page = read_as("demo-sql", text)
    counts = page.counts
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (1_061, 4_244, 2_535)
    assert counts.num_accepted_tokens_per_pos == (773, 659, 578, 525)
    assert (counts.num_output_tokens, counts.num_requests, counts.num_failed_requests) == (3_504, 118 + 2, 0)
    sums = {name: latency.sum_us for name, latency in counts.latencies.items()}
    assert sums[END_TO_END] == 90_998_888, "as the page prints it"
    assert all(each is not None and each > 0 for each in sums.values())
    aborted = text.replace(
        'finished_reason="abort",model_name="demo-sql"} 0.0', 'finished_reason="abort",model_name="demo-sql"} 9.0'
    )
    assert read_as("demo-sql", aborted).counts.num_failed_requests == 9
    assert (counts.num_prompt_tokens, counts.num_cached_tokens) == (11_067, 0)
    assert page.num_running == 0
    busy = text.replace(
        'running{engine="0",model_name="demo-sql"} 0.0', 'running{engine="0",model_name="demo-sql"} 7.0'
    )
    assert read_as("demo-sql", busy).num_running == 7
    assert page.started_at == datetime.fromtimestamp(1_795_394_344.89, UTC)
    assert set(counts.latencies) == set(LATENCIES)
    assert {latency.total for latency in counts.latencies.values()} == {120}, "one observation of each request"
    assert "4 positions" in page.series
    unsplit = "\n".join(line for line in text.splitlines() if "queue_time" not in line and "inference_time" not in line)
    before = read_as("demo-sql", unsplit + "\n")
    assert set(LATENCIES) - set(before.counts.latencies) == {QUEUE, COMPUTE}
    assert before.series == page.series, "what was read before the split goes on as the same series"
    assert not read_as("other", text).has_model


def test_a_page_as_sglang_sends_it() -> None:
    """Of 0.5.23 with the bundled pair at K = 3, after 3 requests: every figure as grep finds it there."""
    text = SGLANG_PAGE.read_text(encoding="utf-8")
    page = parse(text, ENGINES["sglang"].metrics, "pair")
    counts = page.counts
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (16, None, None)
    assert (counts.num_output_tokens, counts.num_requests, counts.num_failed_requests) == (27 + 8, 2 + 1, 1)
    assert counts.accepted_tokens == 35 - 3 - 16
    assert (counts.num_prompt_tokens, counts.num_cached_tokens, page.num_running) == (65 + 11, 1, 0)
    assert set(counts.latencies) == set(LATENCIES) - {COMPUTE}
    assert {latency.total for latency in counts.latencies.values()} == {3}, "one observation of each request"
    before = "".join(line for line in text.splitlines(keepends=True) if 'is_streaming="true"' not in line)
    assert parse(before, ENGINES["sglang"].metrics, "pair").series == page.series, (
        "the first streamed request is no reset"
    )


def test_a_page_as_llama_cpp_sends_it() -> None:
    """Of build 0c1e570 with the bundled pair at K = 3: every figure as grep finds it there."""
    page = read(LLAMACPP_PAGE.read_text(encoding="utf-8"), "llama.cpp")
    counts = page.counts
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (58, 172, 91)
    assert counts.num_accepted_tokens_per_pos == (41, 26, 24)
    assert (counts.num_output_tokens, counts.num_requests) == (156, None)
    assert counts.num_prompt_tokens == 14 + 42
    assert page.num_running == 0
    assert counts.num_cached_tokens == 42
    assert page.started_at is None
    assert page.has_model, "a page without a model's name is of the server's one model"


def test_ranks_and_reasons_are_added_up_and_other_models_left_out() -> None:
    lines = [
        f'vllm:{name}{{engine="{rank}",model_name="{model}"{more}}} {value}'
        for rank, model, value in (("0", "m", 5), ("1", "m", 7), ("0", "other", 1_000))
        for name, more in (
            ("generation_tokens_total", ""),
            ("request_success_total", ',finished_reason="stop"'),
            ("request_success_total", ',finished_reason="length"'),
            ("spec_decode_num_accepted_tokens_per_pos_total", ',position="0"'),
        )
    ]
    page = read("\n".join(lines))
    assert (page.counts.num_output_tokens, page.counts.num_requests) == (12, 24)
    assert page.counts.num_accepted_tokens_per_pos == (12,)
    assert page.counts.num_drafts is None, "what is not on the page is not 0"
    assert page.series != read("\n".join(line for line in lines if 'engine="1"' not in line)).series, "another rank"


@pytest.mark.parametrize("label", ["tp_rank", "pp_rank", "moe_ep_rank"])
def test_ranks_that_all_count_the_same_are_one(label: str) -> None:
    """Of data parallelism they are shares instead, each of which may have its own copies."""
    lines = [
        f'sglang:{name}{{dp_rank="{share}",{label}="{copy}",model_name="m"}} {value}'
        for share, drafts in (("0", 100), ("1", 40))
        for copy in ("10", "2", "0")
        for name, value in (("spec_verify_calls_total", drafts + int(copy)), ("num_running_reqs", 3))
    ]
    page = read(SGLANG.replace("sglang:spec_verify", "sglang:x") + "\n".join(lines) + "\n", "sglang")
    assert (page.counts.num_drafts, page.num_running) == (140, 6)
    assert set(page.samples.values()) >= {100, 40}


def test_a_page_of_several_models_has_only_the_endpoint_s() -> None:
    def labelled(label: str, model: str, factor: int) -> str:
        lines = []
        for line in LLAMACPP.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.replace("{", f'{{{label}="{model}",') if "{" in name else f'{name}{{{label}="{model}"}}'
                lines.append(f"{name} {int(float(value)) * factor}\n")
        return "".join(lines)

    alone = read(LLAMACPP, "llama.cpp").counts
    for label in ("model", "model_name", "model_alias"):
        both = read(labelled(label, "m", 1) + labelled(label, "other", 3), "llama.cpp")
        assert (both.counts, both.has_model) == (alone, True)
        assert not read(labelled(label, "other", 3), "llama.cpp").has_model
        unnamed = read(labelled(label, "other", 3) + LLAMACPP, "llama.cpp")
        assert (unnamed.counts.num_drafts, unnamed.has_model) == (None, False), "a router's sums are of every model"
        assert read(labelled(label, "m", 1) + LLAMACPP, "llama.cpp").counts == alone, "with a name and without"
        other = f'llamacpp:requests_processing{{{label}="other"}} 1\n'
        assert read(LLAMACPP.replace("llamacpp:requests_processing 2\n", other), "llama.cpp").counts.num_drafts is None


def test_servers_of_one_process_have_no_ranks() -> None:
    lines = LLAMACPP + 'llamacpp:tokens_predicted_total{server="b"} 7\n'
    with pytest.raises(PageError, match="llamacpp:tokens_predicted_total has several values") as refused:
        read(lines, "llama.cpp")
    assert refused.value.code == "several_processes"


def test_what_sglang_counts() -> None:
    counts = read(SGLANG, "sglang").counts
    assert (counts.num_drafts, counts.num_output_tokens, counts.num_requests) == (250, 640, 10)
    assert (counts.num_prompt_tokens, counts.num_cached_tokens) == (800, 200)
    assert counts.num_accepted_tokens is None, "it counts none; a gauge is no counter"
    assert counts.num_failed_requests == 2
    assert counts.num_accepted_tokens_per_pos == ()
    assert counts.latencies == {
        "end_to_end_s": Buckets((0.1,), (3, 7)),
        "time_per_output_token_s": Buckets((0.05,), (4, 6)),
    }, "of each request, as other engines' time per output token"


def test_requests_in_progress_count_once() -> None:
    """With priorities SGLang prints the total and its parts; ranks are added up."""
    head, model = "sglang:num_running_reqs", 'model_name="m"'
    parts = [("0", "", 5), ("0", "1", 3), ("0", "2", 2), ("1", "", 4), ("1", "1", 4)]
    lines = [f'{head}{{dp_rank="{rank}",{model},priority="{priority}"}} {number}.0' for rank, priority, number in parts]
    assert read(SGLANG, "sglang").num_running is None
    assert read(SGLANG + "\n".join(lines) + "\n", "sglang").num_running == 9
    bare = f"{head}{{{model}}} 6.0\n"
    assert read(SGLANG + bare, "sglang").num_running == 6
    tensorrt_llm = f"trtllm_num_requests_running{{{model}}} 3.0\n"
    assert read(TENSORRT_LLM + tensorrt_llm, "tensorrt-llm").num_running == 3


def test_no_position_accepts_more_than_was_drafted_there() -> None:
    text = TENSORRT_LLM.replace('token_position="1"} 240.0', 'token_position="1"} 129.0')
    with pytest.raises(PageError, match="contradict each other"):
        read(text, "tensorrt-llm")


def test_what_tensorrt_llm_counts() -> None:
    counts = read(TENSORRT_LLM, "tensorrt-llm").counts
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (250, 490, 330)
    assert counts.num_accepted_tokens_per_pos == (200, 130)
    assert (counts.num_requests, counts.num_cached_tokens) == (10 + 2, 200), "those that failed are counted apart"
    assert counts.num_failed_requests == 2, "a refusal is the client's fault"
    by_total = "".join(line for line in TENSORRT_LLM.splitlines(keepends=True) if "token_position" not in line)
    counts = read(by_total, "tensorrt-llm").counts
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (None, 520, 350)


@pytest.mark.parametrize(("declared", "number"), [("# TYPE trtllm_request_error_total counter\n", 0), ("", None)])
def test_a_counter_of_failures_without_a_failure_is_0_and_one_that_is_missing_unknown(
    declared: str, number: int | None
) -> None:
    without = "".join(line for line in TENSORRT_LLM.splitlines(keepends=True) if "request_error" not in line)
    counts = read(declared + without, "tensorrt-llm").counts
    assert (counts.num_failed_requests, counts.num_requests) == (number, 10)


def test_what_llama_cpp_counts(production: Production) -> None:
    """Counters are printed with six digits, but for those by position; prompt tokens without the cached ones."""
    counts = read(LLAMACPP, "llama.cpp").counts
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (617_284, 1_234_570, 1_100_003)
    assert counts.num_accepted_tokens_per_pos == (600_001, 500_002)
    assert (counts.num_output_tokens, counts.num_requests) == (640, None)
    assert (counts.num_prompt_tokens, counts.num_cached_tokens) == (800, 200)
    assert counts.latencies == {}
    production.answer = (200, {}, LLAMACPP.encode())
    (scrape,) = scrape_all(source(production, engine="llama.cpp"))
    assert isinstance(scrape, LiveScrape)
    assert (scrape.num_digits, scrape.rounding(1_234_570), scrape.rounding(617_284)) == (6, 10, 0)
    assert scrape.series.startswith("llama.cpp m, drafts, 2 positions, ")


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ((404, {}, b"{}"), "http_404", "HTTP 404"),
        ((401, {}, b"hush"), "http_401", "is the key right"),
        ((500, {}, b"hush"), "http_500", "HTTP 500"),
        ((302, {"Location": "http://elsewhere.example/x?key=hush"}, b""), "redirected", "points to elsewhere.example"),
        ((200, {}, b"<html>hush</html>"), "garbage", "not in Prometheus' text format"),
        ((200, {}, b"\xff\xfe hush"), "garbage", "not text"),
        ((200, {"Content-Encoding": "gzip"}, b"hush"), "garbage", "compressed"),
        *(
            ((200, {}, f"vllm:generation_tokens_total {value}\n".encode()), "garbage", f"vllm:{name} is not a count")
            for name in ("generation_tokens_total",)
            for value in ("-1", "NaN", "+Inf", "1.5", "1.8446744073709552e19", "9.3e15", "9" * 400)
        ),
        ((200, {}, b"process_start_time_seconds NaN\nvllm:generation_tokens_total 1\n"), "garbage", "process_start"),
        (
            (200, {}, b'process_start_time_seconds{pod="a"} 1\nprocess_start_time_seconds{pod="b"} 2\nvllm:x 1\n'),
            "several_processes",
            "name the page of each replica",
        ),
        ((200, {}, b"vllm:generation_tokens_total 1\n" * 2), "garbage", "generation_tokens_total is on the page twice"),
        ((200, {}, b"vllm:generation_tokens_total 1"), "cut_off", "cut off"),
        ((200, OPENMETRICS, b"vllm:generation_tokens_total 1\n"), "cut_off", "cut off"),
        (
            (200, {}, b"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total 1\n"),
            "cut_off",
            "without the # EOF",
        ),
        (
            (
                200,
                {},
                b"vllm:spec_decode_num_drafts_total 5\nvllm:spec_decode_num_accepted_tokens_total 9\n"
                b"vllm:spec_decode_num_draft_tokens_total 8\nvllm:generation_tokens_total 1\n",
            ),
            "garbage",
            "contradict each other",
        ),
        ((200, {}, b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="99999999999"} 1\n'), "garbage", ""),
        ((200, {}, b"up 1\n"), "other_engine", "none begins with vllm:"),
        ((200, {}, b'vllm:generation_tokens_total{model_name="hush"} 1\n'), "other_model", "of the model m"),
        ((200, {}, b'vllm:cache_config_info{model_name="m"} 1\n'), "no_counters", "none of the counters"),
        ((200, {}, b"#" * (MAX_PAGE_BYTES + 1)), "too_large", "more than 16 MiB"),
    ],
)
def test_what_goes_wrong(
    production: Production, answer: tuple[int, dict[str, str], bytes], code: str, words: str
) -> None:
    """Each failure has its code and words, names the replica, and quotes nothing that was sent."""
    production.answer = answer
    (failed,) = scrape_all(source(production))
    assert isinstance(failed, FailedScrape)
    assert (failed.code, failed.replica) == (code, replica_name(production.url))
    assert failed.message.startswith(f"{failed.replica}: ")
    assert words in failed.message
    assert "hush" not in failed.message


@pytest.mark.parametrize("form", ["openmetrics", "crlf", "bom", "timestamps", "exemplars", "created", "NaN elsewhere"])
def test_other_forms_of_the_same_page_are_read_alike(production: Production, form: str) -> None:
    production.serve(drafts=100, rate=0.8)
    production.running = 3
    page = production.page()
    (plain,) = scrape_all(source(production))
    changed = {
        "openmetrics": page + "# EOF\n",
        "crlf": page.replace("\n", "\r\n"),
        "bom": "\ufeff" + page,
        "timestamps": page.replace("\n", " 1795964745317\n"),
        "exemplars": page.replace("\n", ' # {trace_id="x"} 1.0 1795964745.3\n'),
        "created": page + 'vllm:generation_tokens_created{engine="0",model_name="m"} 1.79e9\n',
        "NaN elsewhere": page + 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} NaN\n',
    }[form]
    production.answer = (200, OPENMETRICS if form == "openmetrics" else {}, changed.encode())
    (found,) = scrape_all(source(production))
    assert isinstance(plain, LiveScrape)
    assert isinstance(found, LiveScrape)
    assert (found.counts, found.series, found.num_running) == (plain.counts, plain.series, 3)
    assert found.samples == plain.samples
    assert found.has_end_mark == (form == "openmetrics")


def test_a_gauge_that_is_no_number_costs_only_the_load(
    production: Production, caplog: pytest.LogCaptureFixture
) -> None:
    production.answer = (200, {}, (production.page() + 'vllm:num_requests_running{model_name="m"} NaN\n').encode())
    (found,) = scrape_all(source(production))
    assert isinstance(found, LiveScrape)
    assert found.num_running is None
    assert "vllm:num_requests_running has an impossible value" in caplog.text


@pytest.mark.parametrize("value", ["NaN", "-0.1", "1.01", "+Inf"])
def test_an_impossible_kv_use_costs_only_itself(
    production: Production, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    production.waiting, production.running = 2, 3
    lines = 'vllm:kv_cache_usage_perc{{engine="{}",model_name="m"}} {}\n'
    text = production.page() + lines.format(0, 0.5) + lines.format(1, value)
    production.answer = (200, {}, text.encode())
    (found,) = scrape_all(source(production))
    assert isinstance(found, LiveScrape)
    assert (found.kv_use, found.num_waiting, found.num_running) == (None, 2, 3)
    assert "vllm:kv_cache_usage_perc has an impossible value: this reading is without it" in caplog.text


def test_memory_pressure_on_a_page_as_vllm_sends_it() -> None:
    """Of vLLM 0.33.0 with one request in progress, only the families that are read and their neighbours."""
    page = read_as("smollm2", PAGE.with_name("vllm-0.33.0.txt").read_text(encoding="utf-8"))
    assert page.kv_use == pytest.approx(0.0027548, abs=1e-7)
    assert (page.num_running, page.num_waiting, page.counts.num_preemptions) == (1, 0, 0)


def test_memory_pressure_is_read_of_every_engine(production: Production) -> None:
    """Of ranks with a cache each the fullest one; requests of all of them."""
    production.waiting, production.kv_use, production.preemptions = 2, 0.8, 5
    (found,) = scrape_all(source(production))
    assert isinstance(found, LiveScrape)
    assert (found.kv_use, found.num_waiting, found.counts.num_preemptions) == (0.8, 2, 5)
    ranks = "".join(
        f'sglang:token_usage{{dp_rank="{rank}",model_name="m",tp_rank="{copy}"}} 0.{rank + 3}\n'
        f'sglang:num_queue_reqs{{dp_rank="{rank}",model_name="m",tp_rank="{copy}"}} 2.0\n'
        for rank in (0, 1)
        for copy in (0, 1)
    )
    page = read(SGLANG + ranks, "sglang")
    assert (page.kv_use, page.num_waiting, page.counts.num_preemptions) == (0.4, 4, 0), "printed from the first one on"
    retracted = 'sglang:num_retracted_requests_total{model_name="m"} 3.0\n'
    assert read(SGLANG + retracted, "sglang").counts.num_preemptions == 3
    plain = "".join(line for line in SGLANG.splitlines(keepends=True) if "spec_" not in line)
    assert read(plain, "sglang").counts.num_preemptions is None, "of a version that may not count them"
    gauges = 'trtllm_kv_cache_utilization{model_name="m"} 0.7\ntrtllm_num_requests_waiting{model_name="m"} 1.0\n'
    page = read(TENSORRT_LLM + gauges, "tensorrt-llm")
    assert (page.kv_use, page.num_waiting, page.counts.num_preemptions) == (0.7, 1, None)
    page = read(LLAMACPP + "llamacpp:requests_deferred 4\n", "llama.cpp")
    assert (page.kv_use, page.num_waiting, page.counts.num_preemptions) == (None, 4, None)


def test_a_page_whose_length_nobody_says_is_refused(production: Production) -> None:
    """The end of the connection ends it: a part of it would pass for the whole."""
    import socket

    production.serve(drafts=100, rate=0.8)
    found = []
    for page in (production.page(), production.page() + "# EOF\n"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            answer = f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{page}".encode()
            thread = threading.Thread(target=_answer_once, args=(server, answer))
            thread.start()
            url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
            found += scrape_all(replace(source(production), urls=(url,)))
            thread.join()
    assert [getattr(each, "code", "read") for each in found] == ["cut_off", "read"]


@pytest.mark.parametrize("framing", ["Content-Length: 999999\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1f\r\n"])
def test_an_answer_that_ends_within_the_page_is_cut_off(production: Production, framing: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = f"HTTP/1.1 200 OK\r\n{framing}vllm:generation_tokens_total 1\n".encode()
        thread = threading.Thread(target=_answer_once, args=(server, answer))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        (failed,) = scrape_all(replace(source(production), urls=(url,)))
        thread.join()
    assert getattr(failed, "code", "read") == "cut_off"


def _answer_once(server: Any, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(answer)


def test_one_replica_that_fails_keeps_no_other_from_being_read(production: Production) -> None:
    broken = Production()
    with producing(broken):
        broken.answer = (500, {}, b"")
        away = "http://127.0.0.1:9/metrics"
        found = scrape_all(replace(source(production), urls=(away, broken.url, production.url)))
    assert [getattr(each, "code", "read") for each in found] == ["unreachable", "http_500", "read"]


def test_a_page_that_does_not_come_is_given_up(production: Production) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection and says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        found = scrape_all(replace(source(production), urls=(url, production.url), timeout_s=0.3))
    assert [getattr(each, "code", "read") for each in found] == ["timeout", "read"]


def test_the_key_is_sent_and_missed(production: Production, tmp_path: Path) -> None:
    live_source = source(production, api_key_variable="LIVE_KEY")
    scrape_all(live_source, {"LIVE_KEY": "k"})
    assert production.headers[-1]["Authorization"] == "Bearer k"
    with pytest.raises(ConfigError, match="LIVE_KEY is not set"):
        scrape_all(live_source, {})
    with pytest.raises(ConfigError, match="no certificate"):
        scrape_all(source(production, ca_file=tmp_path / "none.pem"))


def test_proxies_of_the_environment_are_not_used(production: Production, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    (found,) = scrape_all(source(production))
    assert isinstance(found, LiveScrape)


@pytest.mark.representative("150")
@pytest.mark.parametrize("num_pages", [150, 1_500])
def test_damaged_pages_end_in_one_kind_of_error(num_pages: int) -> None:
    production = Production()
    production.serve(drafts=20, rate=0.5)
    page, refused = production.page() + SGLANG + TENSORRT_LLM, 0
    for seed in range(num_pages):
        drawn = random.Random(seed)
        damaged = list(page)
        for _ in range(drawn.randint(1, 6)):
            place = drawn.randrange(len(damaged))
            damaged[place] = drawn.choice('{}"=,\\\n# \x00é9e+-N')
        for engine in ENGINES:
            try:
                read("".join(damaged), engine)
            except PageError:
                refused += 1
    assert refused > num_pages / 3


LINES = st.lists(st.sampled_from([line for text in (SGLANG, LLAMACPP, TENSORRT_LLM) for line in text.splitlines()]))
VALUES = st.sampled_from(
    ["1", "NaN", "-Inf", "1e400", "9" * 5_000, "0x1", "1_0", "", "{", '"', "\\", "# EOF", "\r", "#"]
)


@given(LINES, st.lists(VALUES), st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace")), st.randoms())
def test_no_page_ends_in_another_error(lines: list[str], values: list[str], noise: str, drawn: random.Random) -> None:
    mixed = [f"{line.rpartition(' ')[0]} {value}" for line, value in zip(lines, values, strict=False)]
    parts = [*lines, *mixed, *noise.split("\n"), *values]
    drawn.shuffle(parts)
    for engine in ENGINES:
        try:
            counts = read("\n".join(parts), engine).counts
        except PageError:
            continue
        assert counts.is_valid
