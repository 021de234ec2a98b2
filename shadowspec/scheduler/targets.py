"""Keeps exports in their targets: files, Git branches, ConfigMaps.  The same export again changes nothing.

A target gets the state of now, never that of the moment at which it was asked for: of two attempts the later one is
right whatever became of the first.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from shadowspec.errors import ConfigError, ExitCode, ShadowSpecError
from shadowspec.scheduler.target_settings import ConfigMapTarget, FileTarget, GitTarget, KeptTarget
from shadowspec.servers.client import trust
from shadowspec.text import plain_text, write_whole

AUTHOR: Final = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "ShadowSpec"), ("EMAIL", "shadowspec@localhost"))
}
_FILE: Final = "100644"


@dataclass(frozen=True, slots=True)
class StateExport:
    """The export of now: its text, texts that belong beside it by the end of their names, and the reason of each line
    of it.
    """

    text: str
    beside: Mapping[str, str]
    reasons: tuple[str, ...]

    def named(self, path: Path) -> dict[Path, str]:
        """Every file; the main one last, because it refers to the others."""
        others = {path.with_name(path.stem + end): text for end, text in self.beside.items()}
        return {**others, path: self.text}


Renderer = Callable[[], StateExport]


class TargetError(ShadowSpecError):
    """A target has not taken an export.  The log of deliveries has only `kind`; the message quotes no server."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def keep(target: KeptTarget, export: StateExport, timeout_s: float) -> bool:
    """Keep the export in its target; whether that changed anything.

    Raises:
        OSError, TargetError: the target has not taken it.
        ConfigError: a credential is missing.
    """
    match target:
        case FileTarget():
            return _keep_files(target, export)
        case GitTarget():
            return _commit(target, export, timeout_s)
        case ConfigMapTarget():
            return _apply(target, export, timeout_s)


def require_target(target: KeptTarget) -> None:
    """Check that the target's place exists; nothing is written.

    Raises:
        ConfigError: it does not.
    """
    match target:
        case FileTarget() if not os.access(target.path.absolute().parent, os.W_OK | os.X_OK):
            raise ConfigError(f"path {target.path}: its folder is missing or cannot be written to")
        case GitTarget():
            _require_repository(target)
        case ConfigMapTarget():
            _credentials(target)
        case _:
            pass


def _keep_files(target: FileTarget, export: StateExport) -> bool:
    changed = [(path, text) for path, text in export.named(target.path).items() if _read(path) != text]
    for path, text in changed:
        write_whole(path, text)
    return bool(changed)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _commit(target: GitTarget, export: StateExport, timeout_s: float) -> bool:
    """One commit on the branch, made without a working tree.

    1. The branch as the remote has it, or the local one.  2. Its tree with our files.  3. Nothing more if it is the
    same.  4. The commit, with the reasons in its message.  5. The remote's branch, or the local one, moves to it; if
    somebody else was faster, the next attempt begins at 1.
    """
    branch = f"refs/heads/{target.branch}"
    with tempfile.TemporaryDirectory(prefix="shadowspec-") as folder:
        git = _Git(target.repository, {"GIT_INDEX_FILE": str(Path(folder, "index"))}, timeout_s)
        start = branch
        if target.remote is not None:
            start = f"refs/shadowspec/{target.name}"
            git.run("fetch", "--quiet", "--no-tags", target.remote, f"+{branch}:{start}")
        parent = git.run("rev-parse", "--verify", "--quiet", start)
        git.run("read-tree", parent)
        for path, text in export.named(Path(target.path)).items():
            blob = git.run("hash-object", "-w", "--stdin", given=text)
            git.run("update-index", "--add", "--cacheinfo", f"{_FILE},{blob},{path.as_posix()}")
        tree = git.run("write-tree")
        if tree == git.run("rev-parse", f"{parent}^{{tree}}"):
            return False
        commit = git.run("commit-tree", tree, "-p", parent, given=_message(target, export.reasons))
        if target.remote is not None:
            git.run("push", "--quiet", target.remote, f"{commit}:{branch}")
        else:
            git.run("update-ref", branch, commit, parent)
    return True


def _message(target: GitTarget, reasons: Sequence[str]) -> str:
    lines = [f"ShadowSpec: {target.name}", "", *map(plain_text, reasons)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Git:
    repository: Path
    variables: Mapping[str, str]
    timeout_s: float

    def run(self, *arguments: str, given: str = "") -> str:
        """What a git command prints.

        Raises:
            TargetError: it failed; git's own words may quote addresses and are left out.
        """
        environment = {**os.environ, **AUTHOR, **self.variables, "GIT_TERMINAL_PROMPT": "0"}
        command = ["git", "-C", str(self.repository), *arguments]
        try:
            done = subprocess.run(  # noqa: S603 - the configuration names repository, branch and remote
                command,
                input=given,
                env=environment,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=True,
            )
        except FileNotFoundError as error:
            raise TargetError("GitMissing", "git is not installed; install it where the scheduler runs") from error
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
            message = f"{self.repository}: git {arguments[0]} failed ({type(error).__name__}); run it there by hand"
            raise TargetError(f"Git {arguments[0]}", message) from error
        return done.stdout.strip()


def _require_repository(target: GitTarget) -> None:
    try:
        git = _Git(target.repository, {}, timeout_s=10.0)
        git.run("rev-parse", "--verify", "--quiet", f"refs/heads/{target.branch}")
        if target.remote is not None:
            git.run("remote", "get-url", target.remote)
    except TargetError as error:
        raise ConfigError(f"{error}: it must be a repository with the branch {target.branch} and the remote") from error


def _apply(target: ConfigMapTarget, export: StateExport, timeout_s: float) -> bool:
    """Server-side apply: it makes the ConfigMap, changes only our keys, and leaves an equal one as it is."""
    token, namespace, ca_file = _credentials(target)
    data = {path.name: text for path, text in export.named(Path(target.key)).items()}
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": target.config_map}, "data": data}
    url = f"{target.api_url}/api/v1/namespaces/{namespace}/configmaps/{target.config_map}"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        with httpx.Client(verify=trust(ca_file), trust_env=False, headers=headers, timeout=timeout_s) as http:
            before = http.get(url)
            version = before.json()["metadata"].get("resourceVersion") if before.is_success else None
            applied = http.patch(
                url,
                params={"fieldManager": "shadowspec", "force": "true"},
                json=named,
                headers={"Content-Type": "application/apply-patch+yaml"},
            )
            if not applied.is_success:
                raise TargetError(f"Kubernetes {applied.status_code}", f"{url}: HTTP {applied.status_code}")
            return bool(applied.json()["metadata"].get("resourceVersion") != version)
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        kind = type(error).__name__
        raise TargetError(kind, f"{url}: no answer of Kubernetes' API ({kind})") from error


def _credentials(target: ConfigMapTarget) -> tuple[str, str, Path | None]:
    """Token, namespace and authorities of the service account, read each time: Kubernetes renews the token."""
    folder = target.account_folder
    try:
        token = (folder / "token").read_text(encoding="utf-8").strip()
        namespace = target.namespace or (folder / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{folder}: the service account cannot be read ({type(error).__name__}); run the scheduler in a pod that "
            "mounts its token, or name account_folder"
        ) from error
    ca_file = folder / "ca.crt"
    return token, namespace, ca_file if ca_file.exists() else None
