"""A fleet behind routes: LiteLLM before two pools of vLLM, routed by verdicts; then one slice's draft goes bad.

    shadowspec demo --out shadowspec-demo
    python -m tests.faults.routes --demo shadowspec-demo --vllm-python PATH --litellm PATH --out RESULTS.json

PATH are the interpreter of an environment with vLLM 0.32, and the program `litellm` of one with `litellm[proxy]`.
`--demo` is a folder that `shadowspec demo` wrote: its gate has enabled text-to-sql and nothing else.  The database is
copied.  Where the demo holds text-to-sql on your machine, set another K in its shadowspec.toml, delete its database and
measure again: `shadowspec db upgrade`, `shadowspec run TRAFFIC`, `shadowspec gate`.  The servers draft at that depth.

1. `export --format litellm` makes the proxy's configuration, `classify --listen` names the slices.  Requests of five
   endpoints land in their pools: text-to-sql by the share of its rollout, all others in the plain pool.
2. The proxy's callback copies to Kafka; a worker measures it.  Every record is counted.
3. The speculative pool comes back with a draft of random weights.  `schedule` reads its counters, raises the alarm,
   reports it by mail and webhook, and its gate moves the rollout back.  The next export routes nothing to the pool.

Exit code 1 if anything was otherwise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from shadowspec import demo
from shadowspec.live.guard import windows_to_alarm
from shadowspec.types.settings import GuardPolicy
from tests.faults.live_guard import ANY_AGE, CONCURRENCY, ENDPOINT, MAX_TOKENS, Command, bad_draft, serving
from tests.faults.outcome import conclude
from tests.kafka_server import kafka_server
from tests.kafka_topics import Topics, read_topic
from tests.scheduler.receivers import Hook, Mailbox, mail_server, web_server
from tests.services import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs"
ENDPOINTS = ("text-to-sql", "code-completion", "api-json", "maths-tutor", "translate")
NUM_REQUESTS = 24  # of each endpoint
INTERVAL_S = 5.0  # between two readings of the live guard
PATIENCE_S = 600.0
TOPIC = "shadow.prompts"
SETTINGS = """
[gate.rollout]
partial_share = 0.5
shadow_soak_s = 0
partial_soak_s = 1e9
min_soak_blocks = 0
max_decision_age_s = 1e9
first_depth = {depth}

[endpoints.text-to-sql.live]
metrics_urls = ["http://127.0.0.1:{speculative}/metrics"]
model = "demo-sql"
interval_s = {interval}

[kafka]
bootstrap_servers = ["{kafka}"]
topics = ["{topic}"]
dead_letter_topic = "{topic}.dead-letters"

[worker]
health_address = "127.0.0.1:{health}"

[schedule.jobs.gate]
cron = "*/15 * * * * *"
does = ["gate"]

[schedule.jobs.alerts]
on = ["alarm", "reversion", "verdict"]
receivers = ["mail", "chat"]

[schedule.receivers.mail]
kind = "email"
host = "127.0.0.1"
port = {mail}
security = "none"
sender = "shadowspec@example.com"
to = ["platform@example.com"]

[schedule.receivers.chat]
kind = "webhook"
url_variable = "CHAT_URL"
"""


class Checks:
    """Whatever is not as it should be."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def expect(self, what: str, is_so: bool) -> None:
        print(f"{'ok   ' if is_so else 'WRONG'} {what}", file=sys.stderr, flush=True)
        if not is_so:
            self.wrong.append(what)


def requests() -> dict[str, list[dict[str, Any]]]:
    """Bodies of the bundled traffic by endpoint, as long as the servers answer quickly."""
    endpoint_of = {model: name for name, model in demo.SERVED_MODELS.items()}
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with gzip.open(demo.TRAFFIC, "rt", encoding="utf-8") as lines:
        for line in lines:
            try:
                body = json.loads(line)["request"]
                name = endpoint_of[body["model"]]
                if not all(isinstance(message["content"], str) for message in body.get("messages", ())):
                    continue
            except (ValueError, KeyError, TypeError):
                continue
            body = {**body, "max_completion_tokens": None, "max_tokens": MAX_TOKENS, "stream": False}
            found[name].append({key: value for key, value in body.items() if value is not None})
    return found


def post(port: int, body: Mapping[str, Any], session: str) -> str:
    """Send a request to the proxy; returns the address of the pool that answered."""
    path = "chat/completions" if "messages" in body else "completions"
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {KEY}", "x-session-id": session},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        response.read()
        return str(response.headers["x-litellm-model-api-base"])


KEY = "sk-of-this-trial-only-0123456789abcdef"


@contextmanager
def running(command: Sequence[object], log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program until the block ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=log.parent,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(what: str, holds: Any, timeout_s: float = PATIENCE_S) -> float:
    """Wait until something holds; returns the seconds that it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() > began + timeout_s:
            raise SystemExit(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.5)
    return time.monotonic() - began


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def proxy_configuration(command: Command, speculative: int, plain: int) -> tuple[dict[str, Any], list[str]]:
    """The exported routes of all endpoints in one configuration, and the endpoints with a route."""
    document: dict[str, Any] = {"model_list": [], "router_settings": {"enable_tag_filtering": True, "fallbacks": []}}
    routed = []
    for name in ENDPOINTS:
        pools = ["--speculative", f"127.0.0.1:{speculative}", "--plain", f"127.0.0.1:{plain}"]
        # The demo's verdicts are of the engine in process; the trial is of the routes.
        accepted = ["--accept-other-engine", "--max-age", ANY_AGE]
        done = command("export", "--format", "litellm", "--endpoint", name, *pools, *accepted)
        if done.returncode:
            raise SystemExit(done.stderr)
        exported = yaml.safe_load(done.stdout)
        document["model_list"] += exported["model_list"]
        document["router_settings"]["fallbacks"] += exported["router_settings"]["fallbacks"]
        if any("default" not in each["litellm_params"]["tags"] for each in exported["model_list"]):
            routed.append(name)
    for each in document["model_list"]:
        each["litellm_params"]["api_key"] = "none"
    document["litellm_settings"] = {
        "callbacks": ["litellm_routes.routes", "shadowspec.capture.litellm_callback.mirror"],
        "request_correlation_in_logs": True,
    }
    return document, routed


@contextmanager
def proxy(
    options: argparse.Namespace, folder: Path, document: Mapping[str, Any], classifier: int, broker: str
) -> Iterator[int]:
    """LiteLLM with this configuration, both hooks beside it; yields its port."""
    port = free_port()
    shutil.copy(EXAMPLES / "routes" / "litellm_routes.py", folder)
    (folder / "litellm.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    command = [options.litellm, "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", port]
    variables = {
        "PYTHONPATH": f".{os.pathsep}{ROOT}",
        "SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS": broker,
        "SHADOWSPEC_CAPTURE_TOPIC": TOPIC,
        "CLASSIFIER_URL": f"http://127.0.0.1:{classifier}",
        "CLASSIFIER_TIMEOUT_S": "10",  # two servers of models share the cores with it
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    with running(command, folder / "litellm.log", **variables):
        wait_until("LiteLLM answers", lambda: answers(f"http://127.0.0.1:{port}/health/liveliness"))
        yield port


def send(
    port: int, traffic: Mapping[str, Sequence[Mapping[str, Any]]], endpoints: Sequence[str]
) -> dict[str, Counter[str]]:
    """Requests of each endpoint; returns how many each pool answered."""
    found = {}
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        for name in endpoints:
            bodies = traffic[name][:NUM_REQUESTS]
            sessions = [f"{name}-{number}" for number in range(len(bodies))]
            found[name] = Counter(pool.map(post, [port] * len(bodies), bodies, sessions))
    return found


def stage_of(command: Command) -> str:
    with command.store() as store:
        return next((each.stage.value for each in store.rollouts(ENDPOINT)), "none")


def consumed(command: Command) -> int:
    """Records counted so far, by whatever fate."""
    with command.store() as store:
        return sum(store.funnel().values())


def lag(port: int) -> float | None:
    """Records that the worker has not read yet; None before it knows."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            lines = response.read().decode().splitlines()
    except OSError:
        return None
    found = [float(line.split()[-1]) for line in lines if line.startswith("shadowspec_consumer_lag_messages{")]
    return sum(found) if found else None


def bad_windows(command: Command, since: datetime) -> list[tuple[int, int]]:
    """Steps that accepted their first token, and drafts, of each window that began since."""
    with command.store() as store:
        return [
            (sum(each.counts.num_accepted_tokens_per_pos[:1]), each.counts.num_drafts)
            for each in store.live_windows(ENDPOINT, since)
            if each.began_at >= since and each.counts.num_drafts
        ]


def wait_messages(broker: str, count: int) -> int:
    """Wait until the topic has as many messages; returns how many it has."""
    wait_until(f"{TOPIC} has {count} messages", lambda: len(read_topic(broker, TOPIC)) >= count)
    return len(read_topic(broker, TOPIC))


def told(mails: Mailbox, chat: Hook) -> set[str]:
    """The kinds of events that both receivers have."""
    bodies = (mail.get_body(("plain",)) for mail in mails.mails)
    mailed = " ".join(body.get_content() for body in bodies if body is not None)
    posted = json.dumps([body for _, _, body in chat.posts])
    words = {"alarm": "Alarm", "reversion": "partial to shadow"}
    return {kind for kind, word in words.items() if word in mailed and word in posted}


def play(options: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    speculative, plain, classifier, health = (free_port() for _ in range(4))
    kafka, mails, chat = (stack.enter_context(each()) for each in (kafka_server, mail_server, web_server))
    os.environ["CHAT_URL"] = f"json://127.0.0.1:{chat.port}/hook"
    for name in ("shadowspec.db", "shadowspec.toml", "demo.secret"):
        shutil.copy(options.demo / name, folder / name)
    settings = (folder / "shadowspec.toml").read_text(encoding="utf-8")
    settings = settings.replace(f'hash_secret_file = "{options.demo}', f'hash_secret_file = "{folder}')
    settings = settings.replace("[dashboard]\n", '[dashboard]\npublic_url = "http://spec.example.com/"\n')
    candidates = tomllib.loads(settings)["endpoints"][ENDPOINT]["candidates"]
    depth = int(candidates[0]["num_speculative_tokens"])
    # The trial is not about the verdict: on a machine where short answers gain little, text-to-sql stays on HOLD.
    settings = settings.replace("[gate]\n", "[gate]\nmargin = 0.0\ntail_share = 0.25\n")
    settings += SETTINGS.format(
        speculative=speculative,
        interval=INTERVAL_S,
        kafka=kafka.bootstrap,
        topic=TOPIC,
        health=health,
        mail=mails.port,
        depth=depth,
    )
    (folder / "shadowspec.toml").write_text(settings, encoding="utf-8")
    command, checks, traffic = Command(folder), Checks(), requests()
    if (done := command("db", "upgrade")).returncode:
        raise SystemExit(done.stderr)
    for _ in range(2):  # shadow, then partial
        command("gate", "--endpoint", ENDPOINT)
    checks.expect("the rollout is partial", stage_of(command) == "partial")

    shadowspec = [sys.executable, "-m", "shadowspec"]
    stated = {
        "SHADOWSPEC_CONFIG": str(folder / "shadowspec.toml"),
        "SHADOWSPEC_DATABASE_URL": f"sqlite:///{folder}/shadowspec.db",
    }
    # The first name labels the metrics of the server.
    models = sorted(demo.SERVED_MODELS.values(), key=lambda model: model != demo.SERVED_MODELS[ENDPOINT])
    server = (options.vllm_python, options.vllm_preload)
    stack.enter_context(serving(*server, None, plain, folder / "plain.log", models=models))
    stack.enter_context(
        running([*shadowspec, "classify", "--listen", f"127.0.0.1:{classifier}"], folder / "classify.log", **stated)
    )
    wait_until("the classifier answers", lambda: answers(f"http://127.0.0.1:{classifier}/"))
    pools = {f"http://127.0.0.1:{speculative}/v1": "speculative", f"http://127.0.0.1:{plain}/v1": "plain"}

    topics = stack.enter_context(Topics(kafka.bootstrap))
    for name in (TOPIC, f"{TOPIC}.dead-letters"):
        topics.create(name=name)

    # 1. Routes.
    with serving(*server, demo.DRAFT, speculative, folder / "good.log", models=models, depth=depth):
        document, routed = proxy_configuration(command, speculative, plain)
        checks.expect("only text-to-sql has a route", routed == [ENDPOINT])
        with proxy(options, folder, document, classifier, kafka.bootstrap) as port:
            landed = send(port, traffic, ENDPOINTS)
            shares = {name: {pools[url]: number for url, number in found.items()} for name, found in landed.items()}
            for name in ENDPOINTS:
                wanted = {"speculative", "plain"} if name == ENDPOINT else {"plain"}
                checks.expect(f"{name}: {shares[name]}", set(shares[name]) == wanted)
            num_mirrored = wait_messages(kafka.bootstrap, NUM_REQUESTS * len(ENDPOINTS))

            # 2. Mirrored and measured.
            before = consumed(command)
            with running([*shadowspec, "worker"], folder / "worker.log", **stated):
                wait_until("the worker has read every record", lambda: lag(health) == 0)
            num_counted = consumed(command) - before  # the worker counts what waits for a block to fill when it drains
            checks.expect(f"{num_counted} of {num_mirrored} records are counted", num_counted == num_mirrored)

            # 3. A bad draft.
            schedule = stack.enter_context(running([*shadowspec, "schedule"], folder / "schedule.log", **stated))
            time.sleep(2 * INTERVAL_S)  # the first reading is where counting begins
            promise = command.live()["promise"]["rate"]
    swapped, began = time.monotonic(), datetime.now(UTC)
    with serving(*server, bad_draft(folder / "bad"), speculative, folder / "bad.log", models=models, depth=depth):
        ready = time.monotonic()
        with proxy(options, folder, document, classifier, kafka.bootstrap) as port:
            bodies = traffic[ENDPOINT]
            number = 0
            while command.check() != 1 and number < 2_000:
                with ThreadPoolExecutor(CONCURRENCY) as pool:
                    batch = [bodies[(number + each) % len(bodies)] for each in range(32)]
                    list(pool.map(post, [port] * 32, batch, [f"bad-{number + each}" for each in range(32)]))
                number += 32
            alarmed = time.monotonic()
        checks.expect("the guard raised the alarm", command.check() == 1)
        wait_until("the rollout moved back", lambda: stage_of(command) == "shadow", 120)
        reverted = time.monotonic()
        wait_until(
            "mail and chat have the alarm and the reversion", lambda: told(mails, chat) >= {"alarm", "reversion"}, 120
        )
        document, routed = proxy_configuration(command, speculative, plain)
        checks.expect("nothing has a route", routed == [])
        with proxy(options, folder, document, classifier, kafka.bootstrap) as port:
            landed = send(port, traffic, [ENDPOINT])
            found = {pools[url]: number for url, number in landed[ENDPOINT].items()}
            checks.expect(f"text-to-sql is served by the plain pool: {found}", set(found) == {"plain"})
    checks.expect("the scheduler still runs", schedule.poll() is None)
    windows = bad_windows(command, began)
    rate = max(accepted / drafts for accepted, drafts in windows)
    stated = windows_to_alarm(promise, rate, GuardPolicy())
    full = sum(min(drafts, GuardPolicy().scored_drafts) for _, drafts in windows) / GuardPolicy().scored_drafts
    checks.expect(f"alarm after {full:.1f} full windows, {stated} stated", stated is not None and full <= stated + 1)
    return {
        "requests_by_pool": shares,
        "records_mirrored": num_mirrored,
        "records_counted": num_counted,
        "requests_of_bad_draft_until_alarm": number,
        "seconds_from_ready_bad_draft_to_alarm": round(alarmed - ready, 1),
        "seconds_from_swap_to_reversion": round(reverted - swapped, 1),
        "reading_every_s": INTERVAL_S,
        "mails": [str(mail["Subject"]) for mail in mails.mails],
        "posts": len(chat.posts),
        "promise": promise,
        "windows_until_alarm": len(windows),
        "as_full_windows": round(full, 1),
        "full_windows_stated": stated,
        "wrong": checks.wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, required=True, help="folder that `shadowspec demo` wrote")
    parser.add_argument("--vllm-python", type=Path, required=True, help="interpreter of an environment with vLLM")
    parser.add_argument("--vllm-preload", default="", help="LD_PRELOAD of vLLM, as its installation asks for it")
    parser.add_argument("--litellm", type=Path, required=True, help="the program litellm")
    parser.add_argument("--folder", type=Path, help="empty folder for logs and database; default: not kept")
    parser.add_argument("--out", type=Path, help="file that gets the figures")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shadowspec-routes-")))
        folder.mkdir(parents=True, exist_ok=True)
        figures = play(options, folder.resolve(), stack)
    conclude(figures, options.out)


if __name__ == "__main__":
    main()
