"""Images in place of the public ones, which cannot be pulled everywhere: of Debian's packages and Maven's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.compose.engine import Docker, DockerError

SOURCES = Path(__file__).parent / "images"
PREFIX = "shadowspec-test"
# Debian 12 has the versions of Postgres and Java that the public images have, Debian 14 the first PyTorch that is new
# enough for us, built for CPUs.
RELEASES = {"bookworm": "debian-12", "forky": "debian-14"}
SUBSTITUTES = {"python": "forky", "kafka": "bookworm", "postgres": "bookworm"}
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy")
NUM_LINES = 20


def name_of(image: str) -> str:
    """The full name of an image that is built here."""
    return f"{PREFIX}/{image}:latest"


@contextmanager
def substitutes(
    docker: Docker, folder: Path, say: Callable[[str], None], *, is_kept: bool = False
) -> Iterator[dict[str, str]]:
    """The names of the images `python`, `kafka` and `postgres`, built unless an earlier run kept them."""
    names = {image: name_of(image) for image in SUBSTITUTES}
    cached = docker.cache()
    try:
        for image, release in SUBSTITUTES.items():
            if docker.succeeds("image", "inspect", names[image]):
                say(f"the image {names[image]} is there")
                continue
            base = name_of(RELEASES[release])
            if not docker.succeeds("image", "inspect", base):
                say(f"making a root file system of Debian's packages ({release})")
                _bootstrap(docker, release, folder / release, base)
            say(f"building a substitute for {image}")
            context = folder / image
            shutil.copytree(SOURCES / image, context)
            if image == "kafka":
                _fetch_jars(context)
            build = ("buildx", "build", "--load", "--progress", "plain", "--build-arg", f"DEBIAN_IMAGE={base}")
            docker.run(*build, "--tag", names[image], str(context))
        yield names
    finally:
        if not is_kept:
            for image in (*SUBSTITUTES, *RELEASES.values()):
                docker.run("image", "rm", "--force", name_of(image), is_required=False)
            docker.remove_cache(cached)


def pip_configuration(folder: Path) -> Path:
    """A pip.conf with the settings of this machine's pip for its index: from its files and the environment."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for origin in ("global", "install", ":env:"):  # the later one wins
        for key, value in re.findall(rf"^{origin}\.([a-z-]+)='(.*)'$", listed, re.MULTILINE):
            if key in PIP_KEYS:
                found[key] = value
    path = folder / "pip.conf"
    path.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in found.items()), encoding="utf-8")
    return path


def _bootstrap(docker: Docker, release: str, folder: Path, image: str) -> None:
    scripts = Path("/usr/share/debootstrap/scripts")
    script = scripts / release if (scripts / release).exists() else scripts / "sid"
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", release, str(folder), _mirror(),
               str(script)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).splitlines()[-NUM_LINES:]
        raise DockerError(f"debootstrap of {release} ended with {done.returncode}:\n" + "\n".join(said))
    for part in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
        shutil.rmtree(folder / part, ignore_errors=True)
    (folder / "var/cache/apt/archives/partial").mkdir(parents=True)
    (folder / "var/lib/apt/lists/partial").mkdir(parents=True)
    docker.import_folder(folder, image)
    shutil.rmtree(folder)


def _mirror() -> str:
    """Where this machine's apt finds Debian."""
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        raise DockerError("apt names no mirror of Debian: run apt-get update")
    return listed[0]


def _fetch_jars(context: Path) -> None:
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(context / "pom.xml"), "dependency:copy-dependencies",
               f"-DoutputDirectory={context / 'jars'}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).splitlines()[-NUM_LINES:]
        raise DockerError(f"Maven ended with {done.returncode}:\n" + "\n".join(said))
