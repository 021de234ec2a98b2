"""Lists of parts in CycloneDX: `sbom.py environment PYTHON FILE | image IMAGE FILE | root FOLDER FILE`.

Each is validated by the schema that cyclonedx-python-lib carries before it is written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

CHECKOUT = Path(__file__).resolve().parents[1]
VERSION = SchemaVersion.V1_6
DPKG_STATUS = "var/lib/dpkg/status"
OS_RELEASES = ("etc/os-release", "usr/lib/os-release")  # the first is a link to the second


def of_environment(python: Path, to: Path) -> int:
    """The packages that this interpreter can import, with shadowspec as the thing they are parts of; their number."""
    return _write(_of_interpreter(python, "--pyproject", str(CHECKOUT / "pyproject.toml")), to)


def of_image(image: str, to: Path, docker: str = "docker") -> int:
    """The Python and Debian packages of an image, which is not started; their number."""
    # Never run; an image without a command needs one all the same.
    container = _output(docker, "create", image, "true").strip()
    try:
        with tempfile.TemporaryDirectory() as folder:
            with subprocess.Popen([docker, "export", container], stdout=subprocess.PIPE) as export:
                assert export.stdout is not None
                unpack_metadata(export.stdout, Path(folder))
            if export.returncode != 0:
                raise SystemExit(f"{docker} export {image} failed")
            return of_root(Path(folder), to, image, _output(docker, "inspect", "--format", "{{.Id}}", image).strip())
    finally:
        _output(docker, "rm", container)


def of_root(root: Path, to: Path, name: str, version: str = "") -> int:
    """The Python and Debian packages of a file system under `root`; their number.

    Raises:
        SystemExit: there are no packages.
    """
    bom = _of_packages(root)
    release = _release(root)
    for package, package_version, architecture in debian_packages(root):
        purl = PackageURL(
            type="deb",
            namespace=release.get("ID", "debian"),
            name=package,
            version=package_version,
            qualifiers={"arch": architecture, "distro": f"{release.get('ID')}-{release.get('VERSION_ID')}"},
        )
        part = Component(
            type=ComponentType.LIBRARY, name=package, version=package_version, purl=purl, bom_ref=purl.to_string()
        )
        bom.components.add(part)
    if not bom.components:
        raise SystemExit(f"{root} has neither Python packages nor {DPKG_STATUS}; name the root of a file system")
    image = Component(type=ComponentType.CONTAINER, name=name, version=version or None, bom_ref="image")
    bom.metadata.component = image
    bom.register_dependency(image, bom.components)
    return _write(bom, to)


def unpack_metadata(archive: IO[bytes], to: Path) -> None:
    """From the archive of a file system, only what names its packages."""
    with tarfile.open(fileobj=archive, mode="r|") as opened:
        for member in opened:
            name = member.name.removeprefix("./")
            is_wanted = name in (DPKG_STATUS, *OS_RELEASES) or name.startswith("var/lib/dpkg/status.d/")
            if member.isfile() and (is_wanted or Path(name).parent.suffix == ".dist-info"):
                opened.extract(member, to, filter="data")


def debian_packages(root: Path) -> Iterator[tuple[str, str, str]]:
    """Name, version and architecture of each installed package."""
    status = root / DPKG_STATUS
    text = status.read_text(encoding="utf-8", errors="replace") if status.exists() else ""
    for paragraph in text.split("\n\n"):
        # A line that begins with a space belongs to the field before it.
        fields = dict(line.split(":", 1) for line in paragraph.splitlines() if ":" in line and line[0] not in " \t")
        values = {key: value.strip() for key, value in fields.items()}
        if values.get("Status", "").endswith(" installed"):
            yield values["Package"], values["Version"], values["Architecture"]


def validate(text: str) -> None:
    """Raise ValueError unless the text is CycloneDX of VERSION, with no key that the schema does not know."""
    error = JsonStrictValidator(VERSION).validate_str(text)
    if error is not None:
        raise ValueError(f"the list of parts breaks the schema of CycloneDX {VERSION.to_version()}: {error}")


def _of_packages(root: Path) -> Bom:
    """The Python packages under `root`, whose interpreter is not run: it may be of another machine."""
    # Only folders that have metadata: an interpreter of the image would find exactly these.
    folders = sorted({str(found.parent) for found in root.rglob("*.dist-info") if found.is_dir()})
    with tempfile.TemporaryDirectory() as folder:
        stand_in = Path(folder) / "python"  # cyclonedx-py asks an interpreter for its sys.path
        stand_in.write_text(f"#!/bin/sh\ncat <<'PATHS'\n{json.dumps(folders or [folder])}\nPATHS\n", encoding="utf-8")
        stand_in.chmod(0o755)
        return _of_interpreter(stand_in)


def _of_interpreter(python: Path, *arguments: str) -> Bom:
    command = [sys.executable, "-m", "cyclonedx_py", "environment", *arguments, "--sv", VERSION.to_version()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, "--output-reproducible", "--no-validate", str(python)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"cyclonedx-py failed: {done.stderr}")
    bom: Bom = Bom.from_json(json.loads(done.stdout))  # type: ignore[attr-defined]
    # Drawn at random by default; made from the content here, so that the same packages give the same file.
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, done.stdout)
    return bom


def _release(root: Path) -> dict[str, str]:
    path = next((root / name for name in OS_RELEASES if (root / name).is_file()), None)
    lines = path.read_text(encoding="utf-8").splitlines() if path else []
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def _write(bom: Bom, to: Path) -> int:
    text = make_outputter(bom, OutputFormat.JSON, VERSION).output_as_string(indent=2)
    validate(text)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text + "\n", encoding="utf-8")
    return len(bom.components)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main() -> None:
    """Write one list."""
    match sys.argv[1:]:
        case ["environment", python, to]:
            number = of_environment(Path(python), Path(to))
        case ["image", image, to]:
            number = of_image(image, Path(to))
        case ["root", folder, to]:
            number = of_root(Path(folder), Path(to), Path(folder).resolve().name or "root")
        case _:
            sys.exit("usage: sbom.py environment PYTHON FILE | image IMAGE FILE | root FOLDER FILE")
    print(f"{to}: {number} packages, valid CycloneDX {VERSION.to_version()}")


if __name__ == "__main__":
    main()
