"""The manifests of deploy/kubernetes on a Kubernetes of one node: installed, updated, broken, drained.

    python -m tests.kubernetes.trial        (or: make test-kubernetes; as root)

It builds the images of tests/compose, starts a cluster in namespaces of Linux, and runs the commands of
docs/kubernetes.md as they are written there.  Bundled traffic is mirrored into Kafka until `check` has a verdict.  Then
it rolls an update, kills each pod while more traffic comes, and drains the node.  In the end the database must have
counted each message once, and the verdict must still be there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from string import Template
from typing import Any, NoReturn

from tests.builders.deployment import LOGIN, ROLES
from tests.compose.engine import Docker, DockerError, engine
from tests.compose.images import name_of, pip_configuration, substitutes
from tests.compose.trial import CERTIFICATES, CONFINED, USER, VERDICT, VERDICT_CODES, Progress, prepare
from tests.kubernetes.node import NODE, TOOLS_IMAGE, KubernetesError, Node, cgroup, end, isolated, programs

CHECKOUT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DOCS = CHECKOUT / "docs" / "kubernetes.md"
FOLDERS = ("base", "gpu", "migrate")
OVERLAY = "tests/kubernetes/overlay"
IMAGE, UPDATE = "registry.example.com/shadowspec:0.1.0", "registry.example.com/shadowspec:0.1.1"
COMPONENTS = ("worker", "scheduler", "dashboard")
KILLED = ("postgres", "kafka", *COMPONENTS)
NAMESPACES = {"postgres": "database", "kafka": "kafka"}
READY_TIMEOUT_S = 600.0
MEASURE_TIMEOUT_S = 1_200.0
NOTICE_S = 3.0  # in which the controllers see that a pod is gone
BLOCKED_S = 20.0  # how long a drain must be held up before it counts as that


class Trial:
    """A running cluster, and what is done to it."""

    def __init__(self, node: Node, folder: Path, progress: Progress) -> None:
        self.node, self.folder, self.progress = node, folder, progress
        self.passwords = {name: secrets.token_hex(12) for name in (*ROLES.values(), "postgres", "kafka")}

    def accept(self) -> dict[str, int]:
        """Let the API server judge every object of each folder, as it is; how many it takes."""
        counts = {}
        for name in FOLDERS:
            apply = ("apply", "--server-side", "--dry-run=server", "--output=name", "-k", f"deploy/kubernetes/{name}")
            counts[name] = len(self.node.kubectl(*self._in_checkout(apply)).splitlines())
        return counts

    def start_peers(self) -> None:
        """DNS, Postgres and Kafka, and the topics."""
        certificate, key = self.node.certificates.sign("kafka", "DNS:kafka.kafka.svc")
        (self.folder / "server.pem").write_text(key.read_text() + certificate.read_text())
        for name in ("postgres", "kafka"):
            volume = self.folder / "volumes" / name
            volume.mkdir(parents=True)
            volume.chmod(0o777)  # their users
        self.apply("dns")
        self.apply("postgres")
        self.apply("kafka")
        pem = f"--from-file=server.pem={self.folder / 'server.pem'}"
        self.node.kubectl("-n", "kafka", "create", "secret", "generic", "kafka-certificate", pem)
        self.wait_rolled("kube-system", "daemonset/coredns")
        for name in ("postgres", "kafka"):
            self.wait_rolled(NAMESPACES[name], f"statefulset/{name}")
        for topic, partitions in (("shadow.prompts", 6), ("shadow.dead-letters", 1)):
            topics = ("/opt/kafka/bin/kafka-topics.sh", "--bootstrap-server", "localhost:9092", "--create", "--topic")
            self.node.kubectl("-n", "kafka", "exec", "kafka-0", "--", *topics, topic, "--partitions", str(partitions))

    def apply(self, peer: str) -> None:
        text = Template((HERE / "peers" / f"{peer}.yaml").read_text())
        values = {"folder": self.folder, **{f"{name}_password": self.passwords[name] for name in ("postgres", "kafka")}}
        # What is no name of ours stays: scripts have variables too.
        self.node.kubectl("apply", "--server-side", "-f", "-", given=text.safe_substitute(values))

    def install(self) -> None:
        """Run the commands of docs/kubernetes.md: with secrets in the places of dots, and our overlay at the end."""
        _, secret, migration = blocks()
        for role in ROLES.values():
            self.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{self.passwords[role]}'")
        self.sql(f"ALTER DATABASE shadowspec OWNER TO {ROLES['owner']}")
        given = self.folder / "given"
        given.mkdir()
        shutil.copyfile(self.node.certificates.authority, given / "kafka-ca.pem")
        (given / "auth.toml").write_text(LOGIN, encoding="utf-8")
        secret = filled(secret, self.passwords)
        self.node.bash(secret, given)
        self.apply("models")
        self.node.bash(migration.replace("deploy/kubernetes/base ", f"{OVERLAY} "), CHECKOUT)
        self.wait_components()

    def wait_components(self) -> None:
        for component in COMPONENTS:
            self.wait_rolled("shadowspec", f"deployment/shadowspec-{component}")

    def wait_rolled(self, namespace: str, workload: str) -> None:
        status = ("-n", namespace, "rollout", "status", workload, "--timeout=2s")
        try:
            self.node.wait(f"{workload} is ready", partial(self.node.succeeds, *status), timeout_s=READY_TIMEOUT_S)
        except KubernetesError as error:
            said = [
                self.node.kubectl("-n", namespace, *words)
                for words in (("get", "pods", "--output=wide"), ("get", "events", "--sort-by=.lastTimestamp"))
            ]
            log = subprocess.run(["kubectl", "-n", namespace, "logs", workload, "--tail=30"],
                                 env=self.node.environment, capture_output=True, text=True, check=False)  # fmt: skip
            raise KubernetesError("\n".join((str(error), *said, log.stdout, log.stderr))) from error

    def check_confinement(self) -> None:
        """Each of our pods runs as our user, on a root that it cannot write to, without a token of the cluster."""
        for component in COMPONENTS:
            said = self.execute(component, "python", "-c", CONFINED).split()
            if said != [str(USER), "30"]:
                raise KubernetesError(f"{component} runs as {said[0]} and is not on a read-only root: {said[1:]}")
            token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
            if self.node.succeeds("-n", "shadowspec", "exec", _deployment(component), "--", "test", "-e", token):
                raise KubernetesError(f"{component} has a token of the cluster")

    def execute(self, component: str, *words: str) -> str:
        return self.node.kubectl("-n", "shadowspec", "exec", _deployment(component), "--", *words)

    def produce(self, name: str) -> None:
        """Put a file of the models' volume on the mirrored topic, with our own command in a worker's pod."""
        self.execute("worker", "shadowspec", "produce", f"/models/{name}", "--topic", "shadow.prompts")

    def sql(self, statement: str) -> str:
        psql = ("psql", "--username", "postgres", "--dbname", "shadowspec", "--no-align", "--tuples-only", "--command")
        return self.node.kubectl("-n", "database", "exec", "postgres-0", "--", *psql, statement).strip()

    def num_counted(self) -> int:
        """Messages whose end the database knows: the sum of the funnel."""
        return int(self.sql("SELECT coalesce(sum(num_records), 0) FROM funnel_counts"))

    def wait_counted(self, num_messages: int) -> None:
        last = time.monotonic()

        def holds() -> bool:
            nonlocal last
            counted = self.num_counted()
            if time.monotonic() - last > 30:
                last = time.monotonic()
                self.progress.say(f"{counted} of {num_messages} messages counted")
            return counted >= num_messages

        self.node.wait(f"{num_messages} messages counted", holds, timeout_s=MEASURE_TIMEOUT_S)

    def wait_verdict(self) -> None:
        """Wait until `check` in a scheduler's pod has the verdict's exit code."""
        check = ("-n", "shadowspec", "exec", _deployment("scheduler"), "--", "shadowspec", "check", "--endpoint")
        wanted = VERDICT_CODES[VERDICT]
        self.node.wait(f"check: {wanted}", lambda: self.node.code(*check, "text-to-sql") == wanted)

    def update(self) -> int:
        """Another version of the image, rolled out; the fewest schedulers that were available meanwhile."""
        for component in COMPONENTS:
            image = f"{component}={UPDATE}"
            self.node.kubectl("-n", "shadowspec", "set", "image", _deployment(component), image)
        fewest = 99
        status = ("-n", "shadowspec", "rollout", "status", "--watch=false")

        def holds() -> bool:
            nonlocal fewest
            fewest = min(fewest, self.num_available("scheduler"))
            is_rolled = all(
                "successfully rolled out" in self.node.kubectl(*status, _deployment(component))
                for component in COMPONENTS
            )
            return is_rolled and self.running_images() == {UPDATE}  # a worker that drains is of the old version still

        self.node.wait("the update is rolled out", holds, timeout_s=READY_TIMEOUT_S)
        return fewest

    def running_images(self) -> set[str]:
        running = "jsonpath={.items[?(@.status.phase=='Running')].spec.containers[*].image}"
        return set(self.node.kubectl("-n", "shadowspec", "get", "pods", "-o", running).split())

    def num_available(self, component: str) -> int:
        found = ("get", _deployment(component), "-o", "jsonpath={.status.availableReplicas}")
        return int(self.node.kubectl("-n", "shadowspec", *found) or 0)

    def kill(self, name: str) -> None:
        """End the first pod of a workload without warning, and wait for its successor."""
        namespace = NAMESPACES.get(name, "shadowspec")
        label = "app.kubernetes.io/" + ("component" if namespace == "shadowspec" else "name")
        pods = self.node.kubectl("-n", namespace, "get", "pods", "-l", f"{label}={name}", "-o", "name").split()
        self.node.kubectl("-n", namespace, "delete", pods[0], "--grace-period=0", "--force")
        time.sleep(NOTICE_S)
        if namespace == "shadowspec":
            self.wait_rolled(namespace, _deployment(name))
        else:
            self.wait_rolled(namespace, f"statefulset/{name}")

    def drain(self) -> dict[str, int]:
        """Drain the only node: the budgets keep a worker and a scheduler until the node takes pods again."""
        drain = ["kubectl", "drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data",
                 "--pod-selector=app.kubernetes.io/name=shadowspec", "--timeout=600s"]  # fmt: skip
        with subprocess.Popen(drain, env=self.node.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True) as draining:  # fmt: skip
            self.node.wait("the drain has evicted what it may", lambda: self.num_available("scheduler") == 1
                           and self.num_available("worker") == 1)  # fmt: skip
            time.sleep(BLOCKED_S)
            kept = {component: self.num_available(component) for component in COMPONENTS}
            is_blocked = draining.poll() is None
            self.node.kubectl("uncordon", NODE)
            said = draining.communicate()[0]
        if draining.returncode != 0 or not is_blocked or "disruption budget" not in said:
            raise KubernetesError(f"the drain ended with {draining.returncode}:\n{said}")
        if kept != {"worker": 1, "scheduler": 1, "dashboard": 0}:
            raise KubernetesError(f"while the drain waited there were {kept}")
        self.wait_components()
        return kept

    def compare(self, num_messages: int) -> dict[str, Any]:
        """The figures of the database; `wrong` lists each that is not what the messages ask for."""
        measured = "SELECT coalesce(sum(num_records), 0) FROM funnel_counts WHERE counter ="
        counts = {
            "messages": num_messages,
            "in the funnel": self.num_counted(),
            "in the ledger": int(self.sql("SELECT sum(num_messages) FROM ledger")),
            "measured": int(self.sql(f"{measured} 'measured'")),
            "failed": int(self.sql(f"{measured} 'failed'")),
            "runs": int(self.sql("SELECT count(*) FROM runs")),
        }
        wrong = [
            f"{name}: {counts[name]}, not {num_messages}"
            for name in ("in the funnel", "in the ledger")
            if counts[name] != num_messages
        ]
        if counts["runs"] != counts["measured"] + counts["failed"]:
            wrong.append(
                f"{counts['runs']} runs of {counts['measured']} measured and {counts['failed']} failed requests"
            )
        return {"counts": counts, "wrong": wrong}

    def _in_checkout(self, words: tuple[str, ...]) -> list[str]:
        return [str(CHECKOUT / word) if word.startswith("deploy/") else word for word in words]


def _deployment(component: str) -> str:
    return f"deployment/shadowspec-{component}"


def blocks() -> list[str]:
    """The blocks of commands of docs/kubernetes.md's list: namespace, secrets, migration and the rest."""
    text = DOCS.read_text(encoding="utf-8")
    found = re.findall(r"(?:^ {7}\S?.*\n)+", text, re.MULTILINE)
    made = ["".join(line[7:] for line in block.splitlines(keepends=True)) for block in found]
    if len(made) != 3:
        raise KubernetesError(f"docs/kubernetes.md has {len(made)} blocks of commands, not 3")
    return made


def filled(commands: str, passwords: Mapping[str, str]) -> str:
    """The commands that create the secrets, with values in the places of dots.

    Raises:
        KubernetesError: there are dots in a place that this does not know.
    """
    made = re.sub(r"//(\w+):\.\.\.@", lambda found: f"//{found[1]}:{passwords[found[1]]}@", commands)
    values = {"kafka-password": passwords["kafka"], "servers-api-key": "none", "webhook-url": "json://127.0.0.1:1/"}
    for key, value in values.items():
        made = made.replace(f"={key}=...", f"={key}={value}")
    if "..." in made:
        raise KubernetesError(f"docs/kubernetes.md has a secret that this does not know:\n{made}")
    return made


def save_images(docker: Docker, folder: Path, progress: Progress, *, is_kept: bool) -> None:
    """Build every image, and write them to one archive."""
    ours = name_of("shadowspec")
    with substitutes(docker, folder, progress.say, is_kept=is_kept) as images:
        progress.finish("substitutes")
        build = ("buildx", "build", "--load", "--progress", "plain")
        certificates = CERTIFICATES if CERTIFICATES.exists() else Path("/dev/null")
        given = (f"id=pip_conf,src={pip_configuration(folder)}", f"id=certificates,src={certificates}")
        cached = docker.cache()
        try:
            docker.run(*build, "--build-arg", f"BASE_IMAGE={images['python']}", "--secret", given[0], "--secret",
                       given[1], "--tag", ours, str(CHECKOUT))  # fmt: skip
            context = folder / "tools"
            context.mkdir()
            shutil.copyfile(HERE / "tools" / "Dockerfile", context / "Dockerfile")
            for tool in ("coredns", "pause"):
                shutil.copy(programs() / tool, context / tool)
            docker.run(*build, "--tag", TOOLS_IMAGE, str(context))
            progress.finish("our image")
            for name in (IMAGE, UPDATE):
                docker.run("tag", ours, name)
            names = (IMAGE, UPDATE, TOOLS_IMAGE, images["kafka"], images["postgres"])
            docker.run("save", "--output", str(folder / "images.tar"), *names)
        finally:
            for name in (IMAGE, UPDATE, TOOLS_IMAGE, *(() if is_kept else (ours,))):
                docker.run("image", "rm", "--force", name, is_required=False)
            if not is_kept:
                docker.remove_cache(cached)


def run(folder: Path, num_messages: int, cgroup_root: str, progress: Progress) -> dict[str, Any]:
    """Everything inside the namespaces."""
    node = Node(folder / "node", cgroup_root)
    trial = Trial(node, folder, progress)
    node.start_control_plane()
    progress.finish("the API server")
    namespace, _, _ = blocks()
    node.bash(namespace, CHECKOUT)
    accepted = trial.accept()
    progress.finish("every object accepted")
    node.start_node(folder / "images.tar")
    progress.finish("the node")
    data = folder / "data"
    data.mkdir()
    parts = prepare(data, num_messages)
    for name, _ in parts:
        (data / name).rename(data / "models" / name)
    trial.start_peers()
    progress.finish("DNS, Postgres and Kafka")
    trial.install()
    trial.check_confinement()
    progress.finish("installed as documented")

    name, num_sent = parts[0]
    trial.produce(name)
    trial.wait_counted(num_sent)
    trial.wait_verdict()
    progress.finish(f"{num_sent} messages counted, and {VERDICT}")
    fewest = trial.update()
    progress.finish("updated")
    for killed, (name, num_added) in zip(KILLED, parts[1:], strict=True):
        trial.produce(name)
        num_sent += num_added
        trial.kill(killed)
        trial.wait_components()
        progress.finish(f"a pod of {killed} killed, and all ready")
    kept = trial.drain()
    progress.finish("drained")
    trial.wait_counted(num_sent)
    trial.wait_verdict()
    progress.finish("the rest counted")
    observed = {"accepted": accepted, "fewest_schedulers_in_update": fewest, "available_while_drain_waits": kept}
    return {**observed, **trial.compare(num_sent)}


def inside(folder: Path, num_messages: int, cgroup_root: str) -> NoReturn:
    """The part in the namespaces: writes its figures to a file."""
    progress = Progress()
    (folder / "node").mkdir()
    try:
        figures = run(folder, num_messages, cgroup_root, progress)
    except KubernetesError as error:
        sys.exit(f"test-kubernetes: {error}")
    (folder / "figures.json").write_text(json.dumps(figures | {"seconds": progress.steps}))
    sys.exit(0)


def main() -> NoReturn:
    """Run it; exit code 1 where something is wrong, with its last lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--keep-images", action="store_true", help="leave the images for the next run")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", nargs=2, metavar=("FOLDER", "CGROUP"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside is not None:
        inside(Path(chosen.inside[0]), chosen.messages, chosen.inside[1])
    if os.geteuid() != 0:
        sys.exit("test-kubernetes: only root can make the namespaces that the cluster runs in: run this as root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that everything is removed
    progress = Progress()
    folder = Path(tempfile.mkdtemp(prefix="shadowspec-kubernetes-"))
    folder.chmod(0o755)  # pods of other users mount what is in it
    try:
        with engine() as docker:
            save_images(docker, folder, progress, is_kept=chosen.keep_images)
        progress.finish("an archive of images")
        with cgroup(folder.name) as root:
            command = [
                "-m",
                "tests.kubernetes.trial",
                "--messages",
                str(chosen.messages),
                "--inside",
                str(folder),
                root,
            ]
            started = isolated(command)
            try:
                code = started.wait()
            finally:
                end(started)
        if code != 0:
            sys.exit(code)
        figures = json.loads((folder / "figures.json").read_text())
    except (DockerError, KubernetesError) as error:
        sys.exit(f"test-kubernetes: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    progress.end(figures, chosen.out)


if __name__ == "__main__":
    main()
