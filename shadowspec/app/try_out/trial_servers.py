"""The servers of a trial: what each serves and how it drafts, asked of the servers themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from shadowspec.errors import ModelError, UsageError
from shadowspec.model_folder import read_object
from shadowspec.servers.engines import configured_name
from shadowspec.servers.identity import served_names
from shadowspec.servers.probing import Probe, probe_servers
from shadowspec.servers.served_tokenizer import connect_tokenizer
from shadowspec.servers.server_settings import ServerSettings, SpeculativeServer
from shadowspec.types.served_methods import METHOD_KEYS, setting
from shadowspec.types.server_facts import known_dtype

UNSTATED: Final = "not stated"  # the device of a trial's servers, which report none
UNREPORTED: Final = "speculative"  # the method of a server that does not name it


@dataclass(frozen=True, slots=True)
class TrialUrls:
    """The roots of a plain server and of speculative ones.

    A trial that starts them itself knows their `method`, and says in `started` what it starts, by which it is known
    again: their addresses are others each time.
    """

    baseline: str
    speculative: Sequence[str]
    method: str = ""
    started: str = ""


@dataclass(frozen=True, slots=True)
class TrialCandidate:
    """What one speculative server does, in the words of a configuration."""

    name: str
    url: str
    method: str
    num_speculative_tokens: int


@dataclass(frozen=True, slots=True)
class TrialServers:
    """A plain server, and a speculative one for each candidate."""

    baseline_url: str
    model: str  # under which all of them serve the target
    engine: str
    dtype: str
    max_model_len: int | None
    candidates: tuple[TrialCandidate, ...]
    has_dtype: bool = True  # whether a server or the target's folder states it
    started: str = ""  # `TrialUrls.started`

    @property
    def text(self) -> str:
        """The servers, by which a trial is known again."""
        if self.started:
            return f"{self.engine}, {self.started}"
        found = (f"{candidate.name} {candidate.url}" for candidate in self.candidates)
        return ", ".join((f"{self.engine} {self.baseline_url}", *found))


def look_at_servers(given: TrialUrls, target: Path | None, model: str | None) -> TrialServers:
    """What the servers of a trial say of themselves; each is sent one tiny request.

    `target` is the folder of the tokenizer (None: the plain server tokenizes), and `model` the name under which they
    serve it; None: their first one.

    Raises:
        UsageError: a URL is no root of a server, or one is given twice.
        ServerError: a server cannot be reached, or gives no usable answer.
        ModelError: the baseline speculates, or another one does not; or there is no folder, and the baseline does not
            say which tokens it makes of a prompt.
    """
    urls = [_root("baseline", given.baseline), *(_root("speculative", url) for url in given.speculative)]
    if twice := [url for place, url in enumerate(urls) if url in urls[:place]]:
        raise UsageError(f"{twice[0]}: is given twice; start a server for each of --baseline and --speculative")
    served = model or served_names(urls[0])[0]
    placed = tuple(SpeculativeServer(f"{place}", url) for place, url in enumerate(urls[1:], 1))
    stated = {} if target is None else read_object(f"--target {target}", target / "config.json") or {}
    settings = ServerSettings(urls[0], served, UNSTATED, "bfloat16", speculative=placed, score_logprobs=0)
    asked = replace(settings, api="completions", prefix_cache="off")  # measuring looks at chats and caches itself
    plain, probes = probe_servers(asked, [server.candidate for server in placed])
    if plain.num_speculative_tokens:
        raise ModelError(
            f"--baseline {urls[0]}: it speculates ({plain.num_speculative_tokens} tokens); name a server of the same "
            "model without speculation"
        )
    if target is None:
        with closing(connect_tokenizer(settings)):  # it says now what it lacks, and not after the first look at records
            pass
    # Of a float32 model vLLM's `auto` makes bfloat16: without the server's word the wider rounding is assumed.
    in_folder = known_dtype(stated.get("dtype") or stated.get("torch_dtype"))
    dtype = plain.identity.dtype or (None if in_folder == "float32" else in_folder)
    candidates: list[TrialCandidate] = []
    for server, probe in zip(placed, probes, strict=True):
        names = [candidate.name for candidate in candidates]
        candidates.append(_candidate(server.url, probe, names, given.method or UNREPORTED))
    lengths = [length for probe in (plain, *probes) if (length := probe.identity.max_model_len) is not None]
    engine = configured_name(plain.identity.engine)
    length = min(lengths, default=None)
    return TrialServers(
        urls[0],
        served,
        engine,
        dtype or settings.dtype,
        length,
        tuple(candidates),
        has_dtype=dtype is not None,
        started=given.started,
    )


def _candidate(url: str, probe: Probe, names: Sequence[str], known: str) -> TrialCandidate:
    """What a speculative server does; `known` is its method where it does not report it."""
    depth = probe.num_speculative_tokens
    if not depth:
        raise ModelError(
            f"--speculative {url}: it does not say that it speculates; start it with speculation, and with the "
            "options of its engine in docs/servers.md"
        )
    method = str(setting(dict(probe.drafts.settings), METHOD_KEYS) or known)
    name = f"{method.replace(',', '-')}-k{depth}"
    return TrialCandidate(name if name not in names else f"{name}-{len(names) + 1}", url, method, depth)


def _root(option: str, url: str) -> str:
    root = url.rstrip("/")
    if not root.startswith(("http://", "https://")) or root.endswith("/v1"):
        raise UsageError(f"--{option} {url}: give the root of a server, such as http://HOST:8000")
    return root
