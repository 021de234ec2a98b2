"""`make release`: when it refuses, equal bytes from build to build, lists of parts, and audits that did not run."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import check_jsonschema
import pytest
import yaml
from click.testing import CliRunner

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / ".ci"))

import audit  # noqa: E402
import distributions  # noqa: E402
import release  # noqa: E402
import sbom  # noqa: E402

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 Version: 9 is a line of the description

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a small package, one commit and nothing else."""
    folder = tmp_path / "project"
    (folder / "sample").mkdir(parents=True)
    (folder / "sample" / "__init__.py").write_text('"""A sample."""\n')
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "sample"\nversion = "1.2.0"\n[tool.setuptools]\npackages = ["sample"]\n'
    )
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0 - 2026-03-01\n\n## 1.1.0 - 2026-01-01\n")
    _git(folder, "init", "--quiet")
    _commit(folder, "begin")
    return folder


def test_a_release_needs_a_clean_tree(project: Path) -> None:
    release.check_clean(project)
    (project / "new.txt").touch()
    with pytest.raises(release.NotReadyError, match=r"not clean: new\.txt; commit or remove"):
        release.check_clean(project)
    _commit(project, "more")
    release.check_clean(project)
    (project / "sample" / "__init__.py").write_text("")
    with pytest.raises(release.NotReadyError, match="sample/__init__"):
        release.check_clean(project)


@pytest.mark.parametrize(
    ("heading", "tag", "message"),
    [
        ("1.2.0", "", None),
        ("[1.2.0] - 2026-03-01", "v1.2.0", None),
        ("1.2.0 - unreleased", "", None),
        ("Unreleased", "", "has version 1.2.0, and the newest heading.*'Unreleased'; rename the heading"),
        ("1.2.01", "", "newest heading of CHANGELOG.md is '1.2.01'"),
        ("1.2.0 - 2026-03-01", "v1.2", "the tag is v1.2, .* tag the commit v1.2.0"),
        ("1.2.0 - unreleased", "v1.2.0", "has no date; write '1.2.0 - YYYY-MM-DD'"),
    ],
)
def test_the_changelog_and_the_tag_name_the_version(heading: str, tag: str, message: str | None, project: Path) -> None:
    (project / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n\n## 1.2.0 - 2020-01-01\n")
    if message is None:
        assert release.check_version(project, tag) == "1.2.0"
        return
    with pytest.raises(release.NotReadyError, match=message):
        release.check_version(project, tag)


def test_this_checkout_names_its_version() -> None:
    release.check_version(CHECKOUT)


@pytest.mark.all
@pytest.mark.slow
def test_the_same_commit_gives_the_same_bytes(project: Path, tmp_path: Path) -> None:
    first = distributions.build(tmp_path / "one", tmp_path / "made", project)
    # Another clone, made later by a user whose umask is another one, with files that are in no commit.
    clone = tmp_path / "clone"
    before = os.umask(0o077)
    try:
        subprocess.run(["git", "clone", "--quiet", str(project), str(clone)], check=True)
        (clone / "sample" / "untracked.py").touch()
        (clone / "build" / "lib" / "sample").mkdir(parents=True)
        (clone / "build" / "lib" / "sample" / "stale.py").touch()
        second = distributions.build(tmp_path / "two", tmp_path / "again", clone)
    finally:
        os.umask(before)
    assert [path.name for path in first] == ["sample-1.2.0.tar.gz", "sample-1.2.0-py3-none-any.whl"]
    assert [distributions.sha256(path) for path in first] == [distributions.sha256(path) for path in second]
    with tarfile.open(first[0]) as archive:
        names = {member.name for member in archive}
        assert {member.mtime for member in archive} == {distributions.commit_time_s(project)}
        assert {(member.uid, member.gid, member.uname) for member in archive} == {(0, 0, "")}
    assert "sample-1.2.0/sample/__init__.py" in names
    assert not any("untracked" in name or "stale" in name for name in names)


def test_sums_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("two")
    (tmp_path / "a").write_text("one")
    sums = release.write_sums(tmp_path)
    assert sums.read_text() == "".join(
        f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in (("a", b"one"), ("b", b"two"))
    )
    subprocess.run(["sha256sum", "--check", "--status", "SHA256SUMS"], cwd=tmp_path, check=True)
    assert release.write_sums(tmp_path).read_text().count("\n") == 2


# Lists of parts.


def test_the_parts_of_a_file_system_are_its_python_and_debian_packages(root: Path, tmp_path: Path) -> None:
    to = tmp_path / "parts.cdx.json"
    assert sbom.of_root(root, to, "sample:1", "sha256:0") == 2
    document = json.loads(to.read_text())
    parts = {part["name"]: part for part in document["components"]}
    assert parts["six"]["purl"] == "pkg:pypi/six@1.17.0"
    assert parts["six"]["licenses"][0]["license"]["id"] == "MIT"
    assert parts["libc6"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12"
    assert (document["bomFormat"], document["metadata"]["component"]["type"]) == ("CycloneDX", "container")
    depended = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert len(depended["image"]) == 2


def test_the_parts_of_an_image_come_from_its_files(root: Path, tmp_path: Path) -> None:
    # The client says what a real one does; `docker export` is the archive of the file system.
    archive, calls = tmp_path / "image.tar", tmp_path / "calls"
    with tarfile.open(archive, "w") as opened:
        opened.add(root, arcname="./")
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$1" >> {calls}\n'
        f"case $1 in create) echo abc ;; export) cat {archive} ;; inspect) echo sha256:12 ;; esac\n"
    )
    docker.chmod(0o755)
    to = tmp_path / "parts.cdx.json"
    assert sbom.of_image("sample:1", to, str(docker)) == 2
    component = json.loads(to.read_text())["metadata"]["component"]
    assert (component["name"], component["version"]) == ("sample:1", "sha256:12")
    assert calls.read_text().split() == ["create", "export", "inspect", "rm"]


def test_only_metadata_is_unpacked(root: Path, tmp_path: Path) -> None:
    (root / "etc" / "passwd").write_text("secret")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as opened:
        opened.add(root, arcname=".")
    packed.seek(0)
    sbom.unpack_metadata(packed, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"METADATA", "status", "os-release"}


def test_a_folder_without_packages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="name the root of a file system"):
        sbom.of_root(tmp_path, tmp_path / "parts.cdx.json", "empty")


@pytest.mark.parametrize("change", [{"components": [{"type": "sort", "name": "x"}]}, {"unknown": 1}])
def test_a_list_that_breaks_the_schema_is_refused(change: dict[str, object]) -> None:
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"type": "library", "name": "x"}]}
    sbom.validate(json.dumps(document))
    with pytest.raises(ValueError, match="breaks the schema"):
        sbom.validate(json.dumps(document | change))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What an image's file system has of two packages."""
    folder = tmp_path / "root"
    package = folder / "usr/local/lib/python3.12/site-packages/six-1.17.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: six\nVersion: 1.17.0\nLicense: MIT\n")
    for name, text in (("var/lib/dpkg/status", STATUS), ("etc/os-release", 'ID=debian\nVERSION_ID="12"\n')):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    return folder


# Audits.


@pytest.mark.parametrize(
    ("packages", "words", "codes"),
    [
        ([("a", []), ("b", [])], "audit: 2 packages, 0 known vulnerabilities", (0, 0)),
        ([("a", []), ("b", ["X-1"])], "b 1: X-1, fixed in 2", (1, 1)),
        ([("a", None), ("b", ["X-1"])], "NOT audited, because the service does not know them: a", (1, 1)),
        ([("a", None), ("b", [])], "NOT audited, because the service does not know them: a", (0, 2)),
        # Of these pip-audit itself says: no known vulnerabilities found.
        ([("a", None), ("b", None)], "DID NOT RUN: the vulnerability service knows none of the 2 packages", (0, 2)),
    ],
)
def test_an_answer_is_not_taken_for_more_than_it_is(
    packages: list[tuple[str, list[str] | None]], words: str, codes: tuple[int, int]
) -> None:
    dependencies = [
        {"name": name, "skip_reason": "not found"}
        if found is None
        else {"name": name, "version": "1", "vulns": [{"id": each, "fix_versions": ["2"]} for each in found]}
        for name, found in packages
    ]
    read = audit.read({"dependencies": dependencies})
    assert words in read.describe()
    assert (read.exit_code(is_required=False), read.exit_code(is_required=True)) == codes
    assert read.document()["has_run"] == ("DID NOT RUN" not in read.describe())


@pytest.mark.parametrize(
    ("accepted", "code"), [([], 1), pytest.param(["--accept", "SAMPLE-2026-1"], 0, marks=pytest.mark.all)]
)
def test_a_vulnerable_pin_is_found(
    accepted: list[str], code: int, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _audit(service, tmp_path, monkeypatch, "--require", *accepted)
    assert done.returncode == code, done.stderr
    assert ("sample 1.0: SAMPLE-2026-1, fixed in 1.1" in done.stdout) == (code == 1)
    assert "audit: 2 packages" in done.stdout


def test_without_a_service_the_audit_did_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = _audit("http://127.0.0.1:9/v1/query", tmp_path, monkeypatch, "--require")
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith("the audit DID NOT RUN: pip-audit got no answer")


def _audit(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> subprocess.CompletedProcess[str]:
    constraints = folder / "constraints.txt"
    constraints.write_text("sample==1.0\nother==2.0\n")
    for name, value in (("VULNERABILITY_SERVICE", "osv"), ("OSV_URL", url)):
        monkeypatch.setenv(f"PIP_AUDIT_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))  # where pip-audit stores answers
    command = [sys.executable, str(CHECKOUT / ".ci" / "audit.py"), *words, str(constraints)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def service() -> Iterator[str]:
    """A service with the interface of OSV, which knows one vulnerability."""
    vulnerability = {
        "id": "SAMPLE-2026-1",
        "summary": "a sample",
        "affected": [
            {
                "package": {"name": "sample", "ecosystem": "PyPI"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
            }
        ],
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = {"vulns": [vulnerability]} if asked["package"]["name"] == "sample" else {}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


# The workflows.

WORKFLOWS = sorted((CHECKOUT / ".github" / "workflows").glob("*.yml"))


def test_workflows_and_action_keep_to_the_published_schemas(tmp_path: Path) -> None:
    assert [path.name for path in WORKFLOWS] == ["audit.yml", "release.yml", "test.yml"]
    assert _schema_errors("vendor.github-workflows", *WORKFLOWS) == ""
    assert _schema_errors("vendor.github-actions", CHECKOUT / "action.yml") == ""
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text().replace("runs-on", "run-on"))
    assert "run-on" in _schema_errors("vendor.github-workflows", broken)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_actions_by_commit_and_no_secret(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each) for each in used)
    assert "secrets." not in text
    for job in yaml.safe_load(text)["jobs"].values():
        # A token that can sign, and code of dependencies, are never in one job.
        assert not (
            "id-token" in job.get("permissions", {}) and "make" in str([step.get("run") for step in job["steps"]])
        )
        assert all("${{" not in step.get("run", "") for step in job["steps"])


def test_the_workflow_makes_a_release_that_must_be_audited() -> None:
    (run,) = re.findall(r"run: (make .*)", (CHECKOUT / ".github/workflows/release.yml").read_text())
    assert run == 'make release ARGS="--require-audit --out dist/release"'


def _schema_errors(schema: str, *paths: Path) -> str:
    done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, *map(str, paths)])
    return done.output if done.exit_code else ""


def _git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True)


def _commit(folder: Path, message: str) -> None:
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", message)
