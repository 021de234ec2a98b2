"""The classifier's time for a request, its agreement with the tap, and its memory.

    make bench NAME=classifier            (nothing else may run meanwhile)

`shadowspec classify --listen` runs on one core; a client on another sends requests one after another over one
connection.  The prompts are 4 kB of bundled text, each different.  The same requests are classified in this process.
Agreement is over all bundled records that have a slice: the tap reads the mirrored record, the classifier the body of
its request.  `--target` names the folder of another model, whose tokenizer is used.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from kernels.benchmarks.harness import answered, engine_machine, options, show, write
from shadowspec import demo
from shadowspec.engine.tokenizer import FolderTokenizer, load_tokenizer
from shadowspec.gate.policy import GatePolicy
from shadowspec.tap.classifier import Classifier
from shadowspec.tap.endpoints import EndpointRule, MatchRule
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.openai import TRUNCATION_MARKER
from shadowspec.tap.reading import Reader
from shadowspec.tap.routing import NO_HINTS
from shadowspec.tap.sources import read_records

PROMPT_BYTES = 4_096
NUM_REQUESTS = 5_000
WARM_UP = 200
HASH = KeyedHash(demo.DEMO_SECRET.encode())


def rules() -> list[EndpointRule]:
    """The demo's endpoints, sliced by everything that needs the prompt: class, regime and length."""
    slice_by = ("prompt_class", "sampling_regime", "context_bucket")
    return [
        EndpointRule(name, (model,), MatchRule(model=model), slice_by=slice_by, **GatePolicy().rule_parts())
        for name, model in demo.SERVED_MODELS.items()
    ]


def bodies() -> list[bytes]:
    """Chat requests of 4 kB of text each."""
    text = "\n".join(_text(record["request"]) for record in answered())
    text = text.replace(TRUNCATION_MARKER, "")  # of a record that the traffic spoils on purpose
    step = max(1, (len(text) - PROMPT_BYTES) // NUM_REQUESTS)
    models = cycle(demo.SERVED_MODELS.values())
    requests = []
    for number in range(NUM_REQUESTS):
        prompt = text[number * step : number * step + PROMPT_BYTES]
        body = {"model": next(models), "messages": [{"role": "user", "content": prompt}], "max_tokens": 64}
        requests.append(json.dumps(body).encode())
    return requests


def _text(request: dict[str, Any]) -> str:
    return request.get("prompt") or "\n".join(str(message["content"]) for message in request["messages"])


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum in milliseconds."""
    ordered = sorted(seconds)
    return {
        "p50_ms": statistics.median(ordered) * 1e3,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
        "max_ms": ordered[-1] * 1e3,
    }


def in_process(requests: list[bytes], classifier: Classifier) -> dict[str, float]:
    """Each request in this process, on one core."""
    times = []
    for body in requests:
        began = time.perf_counter()
        classifier.classify(body, path="/v1/chat/completions")
        times.append(time.perf_counter() - began)
    return quantiles(times[WARM_UP:])


def over_http(requests: list[bytes], target: Path, folder: Path) -> dict[str, float]:
    """Each request over one connection to a server on the first core, by a client on the last."""
    cores = sorted(os.sched_getaffinity(0))
    config = demo.demo_config(folder, 0).replace(f'"{demo.TARGET.as_posix()}"', f'"{target.as_posix()}"')
    (folder / "shadowspec.toml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "shadowspec", "classify", "--listen", "127.0.0.1:0"]
    environment = os.environ | {
        "SHADOWSPEC_CONFIG": str(folder / "shadowspec.toml"),
        "SHADOWSPEC_HASH_SECRET": demo.DEMO_SECRET,
    }
    server = subprocess.Popen(  # noqa: S603
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores[:1]),
    )
    assert server.stderr is not None, "a pipe was asked for"
    try:
        port = next(int(line.rsplit(":", 1)[1]) for line in server.stderr if "classifying requests on" in line)
        os.sched_setaffinity(0, cores[-1:])
        connection = http.client.HTTPConnection("127.0.0.1", port)
        times = []
        for body in requests:
            began = time.perf_counter()
            connection.request("POST", "/v1/chat/completions", body)
            answer = connection.getresponse()
            answer.read()
            times.append(time.perf_counter() - began)
            if answer.headers["x-shadowspec-slice"] == "none":
                raise SystemExit(f"no slice: {answer.headers['x-shadowspec-reason']}")
        status = Path(f"/proc/{server.pid}/status").read_text()
        resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        return quantiles(times[WARM_UP:]) | {"resident_mib": resident_kib / 1024}
    finally:
        server.terminate()
        server.wait()
        os.sched_setaffinity(0, cores)


def prompt_tokens(requests: list[bytes], tokenizer: FolderTokenizer) -> list[int]:
    """The tokens of each prompt, without those of a chat template."""
    return [len(tokenizer.encode_output(json.loads(body)["messages"][0]["content"])) for body in requests]


def agreement(reader: Reader, classifier: Classifier) -> dict[str, int]:
    """How many bundled records with a slice get the same one from their request."""
    num_records = num_equal = 0
    for message in read_records(str(demo.TRAFFIC)):
        for reading in reader.read([(opened, NO_HINTS) for opened in open_message(message, MessageFormat.OPENAI)]):
            if reading.slice_key is not None:
                body = json.dumps(reading.record.request).encode()
                sliced = classifier.classify(body, path=reading.record.request_path)
                num_records += 1
                num_equal += (sliced.endpoint, sliced.slice_key) == (reading.rule.name, reading.slice_key)
    return {"num_records": num_records, "num_equal": num_equal}


def main() -> None:
    """Measure, print, and write the results."""
    parser = options(__doc__, "classifier.json")
    parser.add_argument("--target", type=Path, default=demo.TARGET, help="folder of a model, for its tokenizer")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(str(arguments.target))
    tokenizers = {rule.name: tokenizer for rule in rules()}
    classifier = Classifier(rules(), tokenizers, HASH)
    requests = bodies()
    with tempfile.TemporaryDirectory() as folder:
        served = over_http(requests, arguments.target.resolve(), Path(folder))
    results = {
        "prompt_bytes": PROMPT_BYTES,
        "prompt_tokens": statistics.median(prompt_tokens(requests, tokenizer)),
        "num_requests": NUM_REQUESTS - WARM_UP,
        "over_http": served,
        "in_process": in_process(requests, classifier),
        "agreement": agreement(Reader(rules(), tokenizers, HASH), classifier),
        "machine": engine_machine(),
    }
    write(arguments.out, results)
    show("milliseconds", [{"": name} | results[name] for name in ("over_http", "in_process")])
    print(results["agreement"])


if __name__ == "__main__":
    main()
