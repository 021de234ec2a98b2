"""The engines that measure, each with the configuration that a user would write for it, and the servers it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from kernels.benchmarks.engines.llamacpp.servers import CONTEXT, Binary, running
from kernels.benchmarks.engines.llamacpp.ways import speculation
from kernels.benchmarks.engines.pair import Pair
from kernels.benchmarks.engines.real_model.prompts import CLASSES, ENDPOINT, LABEL
from kernels.benchmarks.engines.servers import SERVED_MODEL, Environment, Server
from kernels.benchmarks.harness import configuration

NGRAM_MIN, NGRAM_MAX = 2, 4
VLLM, LLAMACPP = "vllm", "llama.cpp"
EAGLE3: Final = "eagle3"
# llama.cpp splits some texts otherwise than the model's tokenizer, and its chats are counted by their ids.
AS_IDS: Final = 'api = "completions"\n'
_HEAD: Final = configuration("real-model.toml")
_SERVED: Final = configuration("real-model-served.toml")


@dataclass(frozen=True, slots=True)
class MeasuredWay:
    """A candidate: what drafts, and how much."""

    name: str
    proposer: str
    depth: int  # K

    def section(self, engine: str, draft: Path) -> str:
        """Of the configuration; llama.cpp looks up n-grams of one length, and compares drafts with what it samples."""
        kind = "method" if self.proposer == EAGLE3 else "proposer"  # which this process does not compute by its own
        lines = [f'name = "{self.name}"', f'{kind} = "{self.proposer}"', f"num_speculative_tokens = {self.depth}"]
        if self.proposer == "draft_model":
            lines += [f'draft = "{draft}"', *(['verify_rule = "exact_match"'] if engine == LLAMACPP else [])]
        if self.proposer == "ngram":
            longest = NGRAM_MIN if engine == LLAMACPP else NGRAM_MAX
            lines += [f"ngram_min = {NGRAM_MIN}", f"ngram_max = {longest}"]
        return f"[[endpoints.{ENDPOINT}.candidates]]\n" + "".join(f"{line}\n" for line in lines)

    def vllm_config(self, draft: Path) -> str:
        """vLLM's --speculative-config."""
        methods: dict[str, dict[str, object]] = {
            "ngram": {"method": "ngram", "prompt_lookup_min": NGRAM_MIN, "prompt_lookup_max": NGRAM_MAX},
            "draft_model": {"method": "draft_model", "model": str(draft)},
            EAGLE3: {"method": EAGLE3, "model": str(draft)},
        }
        return json.dumps(methods[self.proposer] | {"num_speculative_tokens": self.depth})


WAYS: Final = (MeasuredWay("ngram-k4", "ngram", 4), MeasuredWay("draft-k3", "draft_model", 3))
TRAINED: Final = (MeasuredWay("eagle3-k3", EAGLE3, 3),)  # where vLLM is given a head


def write_config(folder: Path, engine: str, pair: Pair, way: MeasuredWay, max_tokens: int, servers: str) -> Path:
    """The configuration of one run, in its folder; `servers`: the section that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "secret").write_text("a benchmark on public text has no secrets", encoding="utf-8")
    head = _HEAD.format(
        folder=folder,
        endpoint=ENDPOINT,
        target=pair.target,
        label=LABEL,
        classes=json.dumps(CLASSES),
        max_tokens=max_tokens,
        engine=engine,
    )
    path = folder / "shadowspec.toml"
    path.write_text(head + servers + way.section(engine, pair.draft), encoding="utf-8")
    return path


def served_section(baseline_url: str, speculative_url: str, model: str, more: str = "") -> str:
    """What the configuration says of two servers, and under which name they serve the model; `more`: further lines."""
    return _SERVED.format(endpoint=ENDPOINT, baseline=baseline_url, speculative=speculative_url, model=model, more=more)


@contextmanager
def vllm_servers(environment: Environment, pair: Pair, way: MeasuredWay, folder: Path) -> Iterator[str]:
    """Two of vLLM's servers, without and with this candidate; gives the section that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        servers = []
        for name, config in (("baseline", None), ("speculative", way.vllm_config(pair.draft))):
            server = Server(environment, config, folder / f"{name}.log", is_fixed=False, target=pair.target)
            servers.append(stack.enter_context(closing(server)))
            server.await_ready()  # one after the other, because the first compiles for both
        yield served_section(servers[0].url, servers[1].url, SERVED_MODEL)


@contextmanager
def llama_servers(binary: Binary, way: MeasuredWay, folder: Path) -> Iterator[str]:
    """Two of llama.cpp's servers, likewise."""
    folder.mkdir(parents=True, exist_ok=True)
    slots = ["--parallel", "1", "--ctx-size", str(CONTEXT)]
    with (
        running(binary, ["--spec-type", "none", *slots], folder / "baseline.log") as baseline,
        running(
            binary, [*speculation(way.proposer, binary, way.depth), *slots], folder / "speculative.log"
        ) as speculative,
    ):
        _draft_once(speculative.url)
        yield served_section(baseline.url, speculative.url, SERVED_MODEL, AS_IDS)


def _draft_once(url: str) -> None:
    """Have a server draft: llama.cpp's says how deep it drafts only once it has, and a lookup drafts in few prompts."""
    body = {"prompt": "one two three four five " * 12, "n_predict": 24, "temperature": 0.0, "cache_prompt": False}
    headers = {"Content-Type": "application/json"}
    request = Request(f"{url}/completion", json.dumps(body).encode(), headers)  # noqa: S310 (our own server)
    with urlopen(request, timeout=600.0) as answer:  # noqa: S310 (our own server)
        answer.read()
