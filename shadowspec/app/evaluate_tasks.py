"""A task set of lm-evaluation-harness through the servers of an endpoint, stored as paired scores.

The harness runs as another process, mostly in a separate environment.  Its files and its messages hold prompts: the
files lie in a folder that only this user can read and that is removed, and the messages are dropped.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from shadowspec.app.before_loading import connect_servers
from shadowspec.config import Config, load_hash_secret
from shadowspec.errors import ConfigError, InputError, UsageError
from shadowspec.gate.evidence.guardrails import first_scores
from shadowspec.quality.custom_scores import Scorer
from shadowspec.quality.task_samples import TaskSamples, read_samples
from shadowspec.servers.client import bearer
from shadowspec.servers.server_settings import NamedServer, ServerSettings
from shadowspec.store import Store
from shadowspec.tap.hashing import KeyedHash
from shadowspec.types import Evaluation

PROGRAM: Final = "lm_eval"
# Given here, because both arms must be asked alike and their samples found.
_OURS: Final = ("--model", "--model_args", "--tasks", "--limit", "--output_path", "--log_samples", "--use_cache")
_SHORT: Final = {"-M": "--model", "-a": "--model_args", "-t": "--tasks", "-L": "--limit", "-o": "--output_path"}


@dataclass(frozen=True, slots=True)
class TaskSet:
    """The tasks and how the harness asks them.  `arguments` are given to the harness as they are, for both arms."""

    tasks: Sequence[str]
    limit: int | None = None  # documents of each task, its first ones
    metric: str | None = None  # None: each task's first
    is_chat: bool = False  # through chat completions and the server's chat template
    program: Path | None = None  # the harness's executable; None: lm_eval beside this Python or on PATH
    arguments: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A task set's evaluation; `num_new` of its documents had no score with their config before."""

    evaluations: tuple[Evaluation, ...]
    candidates: Mapping[str, str]  # names, by fingerprint
    num_documents: int
    num_new: int


def evaluate_tasks(config: Config, endpoint: str, task_set: TaskSet, on_server: Callable[[str], None]) -> Evaluated:
    """Ask the task set of each server of an endpoint and store the paired scores under each config's fingerprint.

    Args:
        on_server: called with the label of each server before it is asked.

    Raises:
        UsageError: the endpoint is not measured through servers, or an argument belongs to this command.
        ConfigError: the harness is not installed, or the configuration lacks a secret.
        InputError: the harness failed, or what it wrote cannot be paired; nothing is stored.
        ServiceUnavailableError: a server is not there, or another one answers than at the beginning.
    """
    settings = config.chosen(endpoint)[endpoint]
    if settings.servers is None:
        raise UsageError(f'endpoint {endpoint!r} does not have engine = "openai": a harness needs servers to ask')
    program, keyed_hash = find_program(task_set.program), KeyedHash(load_hash_secret(config))
    for argument in task_set.arguments:
        name = argument.partition("=")[0]
        if _SHORT.get(name, name) in _OURS:
            raise UsageError(f"lm_eval's {name} is set by this command: use the option of this command")
    with Store.open(config.database_url) as store:
        # 1. The servers are those of the candidates.
        engine = connect_servers(config, settings, Scorer())
        names = {known.fingerprint: known.config.name for known in engine.configs}
        before = store.evaluations(endpoint)

        # 2. Every arm, each with the same prompts.
        load = max(load.concurrency for load in settings.rule.loads)
        samples: list[dict[str, TaskSamples]] = []
        for server in (settings.servers.baseline, *map(settings.servers.server_of, names.values())):
            on_server(server.label)
            samples.append(_ask(program, settings.servers, server, task_set, load))
        plain, *speculative = samples

        # 3. They are still the same servers.
        engine.require_same_servers()

        # 4. Pairs, without texts.  Under the lock, so that the clock orders them and the gate's looks.
        with store.endpoint_lock(endpoint):
            now = datetime.now(UTC)
            evaluations = tuple(
                Evaluation(
                    endpoint,
                    measured.fingerprint,
                    name,
                    f"{base.metric} (chat)" if task_set.is_chat else base.metric,
                    now,
                    {
                        keyed_hash.identifier("document", f"{name}\0{document}"): pair
                        for document, pair in base.paired_with(answers[name]).items()
                    },
                )
                for measured, answers in zip(engine.configs, speculative, strict=True)
                for name, base in plain.items()
            )
            _require_same_metrics(before, evaluations)
            store.save_fingerprints(engine.configs)
            store.append_evaluations(evaluations)
    num_new = sum(
        len(first_scores([*before, *evaluations], known)) - len(first_scores(before, known)) for known in names
    )
    return Evaluated(evaluations, names, sum(len(evaluation.documents) for evaluation in evaluations), num_new)


def find_program(given: Path | None) -> Path:
    """The harness's executable.

    Raises:
        ConfigError: there is none.
    """
    if given is not None:
        if not os.access(given, os.X_OK) or given.is_dir():
            raise ConfigError(f"--lm-eval: {given} is not an executable file; give the harness's lm_eval")
        return given
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    program = shutil.which(PROGRAM, path=beside)
    if program is None:
        raise ConfigError(
            f"{PROGRAM} is not installed: make an environment with `python3 -m venv harness && harness/bin/pip install "
            "'lm-eval[api]'`, and give --lm-eval harness/bin/lm_eval"
        )
    return Path(program)


def _ask(
    program: Path, servers: ServerSettings, server: NamedServer, task_set: TaskSet, load: int
) -> dict[str, TaskSamples]:
    path = "chat/completions" if task_set.is_chat else "completions"
    model_arguments = {
        "model": servers.model,
        "base_url": f"{server.url.rstrip('/')}/v1/{path}",
        "num_concurrent": str(load),
        "tokenizer_backend": "None",  # prompts are sent as text, which the server tokenizes as it does a client's
        **({} if servers.ca_file is None else {"ca_cert_path": str(servers.ca_file)}),
    }
    with TemporaryDirectory(prefix="shadowspec-") as folder:
        command = [
            str(program),
            *task_set.arguments,
            "--model",
            "local-chat-completions" if task_set.is_chat else "local-completions",
            "--model_args",
            ",".join(f"{name}={value}" for name, value in model_arguments.items()),
            "--tasks",
            ",".join(task_set.tasks),
            "--log_samples",
            *(["--apply_chat_template"] if task_set.is_chat else []),
            *([] if task_set.limit is None else ["--limit", str(task_set.limit)]),
            "--output_path",
        ]
        key = bearer(servers.api_key_variable).get("Authorization", "Bearer ").removeprefix("Bearer ")
        environment = {**os.environ, "OPENAI_API_KEY": key}
        try:
            done = subprocess.run(  # noqa: S603 - the operator's harness
                [*command, folder], env=environment, capture_output=True, check=False
            )
        except OSError as error:
            raise ConfigError(f"--lm-eval: {program} cannot be started: {error.strerror}") from error
        if done.returncode != 0:
            raise InputError(
                f"{PROGRAM} ended with exit code {done.returncode} at the {server.label} server. Tasks must generate "
                "their answers (output_type generate_until). Its messages may quote prompts and are not shown; see "
                f"them with: {shlex.join([*command, 'OUTPUT_FOLDER'])}"
            )
        return read_samples(Path(folder), task_set.metric)


def _require_same_metrics(before: Sequence[Evaluation], evaluations: Sequence[Evaluation]) -> None:
    for evaluation in evaluations:
        others = {
            old.metric for old in before if (old.fingerprint, old.task) == (evaluation.fingerprint, evaluation.task)
        }
        if others - {evaluation.metric}:
            raise InputError(
                f"task {evaluation.task} was evaluated with this config by {', '.join(sorted(others))}, and now by "
                f"{evaluation.metric}. Another metric is another measure: give the same --metric"
            )
