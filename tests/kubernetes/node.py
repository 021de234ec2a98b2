"""A Kubernetes of one node: etcd, the control plane, containerd and a kubelet, as processes of this machine.

It runs in namespaces of Linux, for processes, mounts and the network, that `isolated` makes.  With their first process
everything ends: containers, mounts, interfaces and rules of iptables.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

VERSION = "1.33.4"
NODE, ADDRESS = "node-1", "10.90.0.1"
SERVICES, PODS = "10.96.0.0/16", "10.91.0.0/24"
API_ADDRESS, DNS_ADDRESS = "10.96.0.1", "10.96.0.10"  # of the Services `kubernetes` and `kube-dns`
TOOLS_IMAGE = "shadowspec-test/tools:latest"  # CoreDNS, and what holds a pod's network
CGROUPS = Path("/sys/fs/cgroup")
START_TIMEOUT_S = 300.0
NUM_LINES = 25  # of what failed


class KubernetesError(RuntimeError):
    """A part of the cluster failed; the message has its last lines."""


def programs() -> Path:
    """Where .ci/kubernetes puts what it builds."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "shadowspec" / f"kubernetes-{VERSION}"


@contextmanager
def cgroup(name: str) -> Iterator[str]:
    """A control group for all pods, in every hierarchy; gone at the end.

    Raises:
        KubernetesError: this machine lets nobody make one.
    """
    unified = (CGROUPS / "cgroup.controllers").exists()
    hierarchies = [CGROUPS] if unified else [path for path in CGROUPS.iterdir() if path.is_dir()]
    try:
        try:
            for hierarchy in hierarchies:
                (hierarchy / name).mkdir()
                if (hierarchy / "cpuset.cpus").exists() and not unified:  # empty: no process may enter
                    for file in ("cpuset.cpus", "cpuset.mems"):
                        (hierarchy / name / file).write_text((hierarchy / file).read_text())
        except OSError as error:
            raise KubernetesError(f"no control group can be made: {error}") from error
        yield f"/{name}"
    finally:
        for hierarchy in hierarchies:
            for folder, _, _ in os.walk(hierarchy / name, topdown=False):  # files of the kernel go with their folder
                with suppress(OSError):
                    Path(folder).rmdir()


def isolated(command: list[str]) -> subprocess.Popen[bytes]:
    """A command of this Python in namespaces of its own; they end with it, and it with us."""
    namespaces = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    return subprocess.Popen(["unshare", *namespaces, sys.executable, *command])


def end(started: subprocess.Popen[bytes]) -> None:
    """End the namespaces' first process, which takes all others along, and wait until they are gone."""
    if started.poll() is not None:
        return
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    if not children:
        started.kill()
    started.wait()


@dataclass(frozen=True)
class Certificates:
    """An authority, and what it has signed."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    def make_authority(self) -> None:
        self.folder.mkdir(parents=True)
        self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority",
                      "-keyout", "authority.key", "-out", "authority.pem")  # fmt: skip

    def sign(self, name: str, alternatives: str) -> tuple[Path, Path]:
        """The certificate and the key of a server with these names and addresses."""
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternatives}\n")
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                      "-out", f"{name}.csr")  # fmt: skip
        self._openssl("x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey",
                      "authority.key", "-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.crt")  # fmt: skip
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def _openssl(self, *words: str) -> None:
        _run(["openssl", *words], cwd=self.folder)


class Node:
    """The processes of a cluster, each with a log in the node's folder."""

    def __init__(self, folder: Path, cgroup_root: str) -> None:
        self.folder, self._cgroup_root = folder, cgroup_root
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens = {user: secrets.token_hex(16) for user in ("admin", f"system:node:{NODE}")}
        self.certificates = Certificates(folder / "certificates")
        self.environment = os.environ | {
            "PATH": f"{programs()}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "KUBECONFIG": str(folder / "admin.json"),
            "HOME": str(folder),  # of kubectl's caches
        }

    @property
    def _socket(self) -> str:
        return str(self.folder / "containerd.sock")

    def start_control_plane(self) -> None:
        """From the network to an API server that answers, its controllers and its scheduler."""
        for command in (
            f"ip link set lo up; ip link add node0 type bridge; ip address add {ADDRESS}/24 dev node0",
            "ip link set node0 up; ip route add default dev node0; echo 1 > /proc/sys/net/ipv4/ip_forward",
            "mount --make-rshared /",
        ):
            _run(["bash", "-euc", command])
        self._make_credentials()
        self._start("etcd", "--data-dir", "etcd", "--listen-client-urls", "http://127.0.0.1:2379",
                    "--advertise-client-urls", "http://127.0.0.1:2379", "--logger", "zap", "--log-level",
                    "warn")  # fmt: skip
        certificate, key = self.certificates.sign(
            "apiserver", f"DNS:kubernetes.default.svc,DNS:localhost,IP:{ADDRESS},IP:{API_ADDRESS},IP:127.0.0.1"
        )
        accounts = str(self.folder / "accounts.key")
        _run(["openssl", "genrsa", "-out", accounts, "2048"])
        self._start("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--advertise-address={ADDRESS}",
                    f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", "--cert-dir=apiserver",
                    f"--service-cluster-ip-range={SERVICES}", "--token-auth-file=tokens.csv",
                    "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
                    "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                    f"--service-account-key-file={accounts}", f"--service-account-signing-key-file={accounts}",
                    "--kubelet-preferred-address-types=InternalIP", "--allow-privileged")  # fmt: skip
        self.wait("the API server is ready", lambda: self.succeeds("get", "--raw", "/readyz"), "kube-apiserver")
        self._start("kube-controller-manager", "--kubeconfig=admin.json", "--leader-elect=false",
                    f"--service-account-private-key-file={accounts}", "--use-service-account-credentials",
                    f"--root-ca-file={self.certificates.authority}", "--cert-dir=controllers")  # fmt: skip
        self._start("kube-scheduler", "--kubeconfig=admin.json", "--leader-elect=false")

    def start_node(self, images: Path) -> None:
        """From containerd, with the images of an archive, to a node that is ready.

        Raises:
            KubernetesError: a process ends, or the node does not get ready.
        """
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "pods.conflist").write_text(json.dumps(self._network()))
        (self.folder / "containerd.toml").write_text(self._containerd())
        self._start("containerd", "--config", "containerd.toml")
        ctr = ["ctr", "--address", self._socket, "--namespace", "k8s.io"]
        self.wait("containerd answers", lambda: _succeeds([*ctr, "version"]), "containerd")
        _run([*ctr, "images", "import", str(images)])
        for name, document in (("kubelet", self._kubelet()), ("proxy", self._proxy())):
            (self.folder / f"{name}.json").write_text(json.dumps(document))
        self._start("kubelet", "--config=kubelet.json", f"--root-dir={self.folder / 'kubelet'}",
                    "--cert-dir=kubelet-pki", "--kubeconfig=node.json", f"--hostname-override={NODE}",
                    f"--node-ip={ADDRESS}")  # fmt: skip
        self._start("kube-proxy", "--config=proxy.json")
        ready = ("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=1s")
        self.wait("the node is ready", lambda: self.succeeds(*ready), "kubelet")

    def kubectl(self, *words: str, given: str | None = None) -> str:
        """What kubectl prints.

        Raises:
            KubernetesError: it ends with another code than 0.
        """
        return _run(["kubectl", *words], given, env=self.environment)

    def succeeds(self, *words: str) -> bool:
        """Whether kubectl with these words ends with 0."""
        return self.code(*words) == 0

    def code(self, *words: str) -> int:
        """The exit code of kubectl with these words."""
        return subprocess.run(["kubectl", *words], env=self.environment, capture_output=True, check=False).returncode

    def bash(self, script: str, folder: Path) -> str:
        """What a script with the cluster's kubectl prints."""
        return _run(["bash", "-euo", "pipefail", "-c", script], env=self.environment, cwd=folder)

    def wait(
        self, what: str, holds: Callable[[], bool], process: str | None = None, timeout_s: float = START_TIMEOUT_S
    ) -> float:
        """Wait until something holds; the seconds that it took.

        Raises:
            KubernetesError: it does not, or a process of the cluster has ended; with its last lines.
        """
        began = time.monotonic()
        while not holds():
            for name, started in self._started.items():
                if started.poll() is not None:
                    raise KubernetesError(f"{name} ended with {started.returncode}:\n{self.log(name)}")
            if time.monotonic() - began > timeout_s:
                said = "" if process is None else f"; the last lines of {process}:\n{self.log(process)}"
                raise KubernetesError(f"{what}: not within {timeout_s:.0f} s{said}")
            time.sleep(1.0)
        return time.monotonic() - began

    def log(self, name: str) -> str:
        """The last lines of a process."""
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-NUM_LINES:])

    def _start(self, program: str, *words: str) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            self._started[program] = subprocess.Popen(
                [program, *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip

    def _make_credentials(self) -> None:
        self.certificates.make_authority()
        groups = {"admin": "system:masters", f"system:node:{NODE}": "system:nodes"}
        rows = [f'{token},{user},{user},"{groups[user]}"\n' for user, token in self._tokens.items()]
        (self.folder / "tokens.csv").write_text("".join(rows))
        for file, (user, token) in zip(("admin.json", "node.json"), self._tokens.items(), strict=True):
            cluster = {"server": f"https://{ADDRESS}:6443", "certificate-authority": str(self.certificates.authority)}
            document = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "current-context": "test",
            }
            (self.folder / file).write_text(json.dumps(document))

    def _network(self) -> Mapping[str, object]:
        # Point to point: all traffic of pods passes the node, where kube-proxy's rules see answers too.
        addresses = {"type": "host-local", "dataDir": str(self.folder / "addresses"),
                     "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}  # fmt: skip
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": addresses}]}

    def _containerd(self) -> str:
        return f"""
version = 2
root = "{self.folder}/containerd"
state = "{self.folder}/containerd-state"
[grpc]
address = "{self._socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{self.folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{TOOLS_IMAGE}"
restrict_oom_score_adj = true  # a machine that is a container itself may not lower it
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{self.folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""

    def _kubelet(self) -> Mapping[str, object]:
        (self.folder / "resolv.conf").write_text("")  # nobody outside is asked for a name
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},  # in its network nobody else is
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._cgroup_root,
            "failSwapOn": False,
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"),
            "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            # Images cannot be pulled again, and a full disk of this machine is no reason to end pods.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        }

    def _proxy(self) -> Mapping[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.folder / "admin.json")},
            "mode": "iptables",
            "clusterCIDR": PODS,
            "hostnameOverride": NODE,
            # Settings of the whole machine, which a namespace may not change.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(
    command: list[str], given: str | None = None, *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    done = subprocess.run(command, input=given, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-NUM_LINES:])
        raise KubernetesError(f"{' '.join(command)[:200]} ended with {done.returncode}:\n{said}")
    return done.stdout
