"""Targets of exports: what is exported, and the place that it is kept in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from shadowspec.rollout.export.formats import FORMATS, ROUTES
from shadowspec.rollout.export.routes import PoolAddress
from shadowspec.servers.engines import ENGINES
from shadowspec.text import suggestion
from shadowspec.types.settings import HttpUrl, Name, PathText, Seconds, Text

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where Kubernetes puts a pod's credentials
TARGETS: Final = ("file", "git", "config_map", "http")  # kinds
WEEK_S: Final = 604_800.0


def _known_format(name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"must be one of {', '.join(FORMATS)}{suggestion(name, FORMATS)}")
    return name


def _inside(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must be the path of a file within the repository")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatToExport:
    """What a target gets, as the options of `export` say it.

    Raises:
        ValueError: the parts do not fit together.
    """

    format: Annotated[str, AfterValidator(_known_format)]
    endpoint: Name | None = None  # None: the only one, and all of them for flags and routes
    max_age_s: Seconds = WEEK_S
    accept_other_engine: bool = False
    routed: bool = False
    gateway: Text = "gateway"
    otherwise: PoolAddress | None = None

    def __post_init__(self) -> None:
        if self.routed and self.format not in ENGINES:
            raise ValueError(f"routed: is for {', '.join(ENGINES)}: {self.format} configures no server")
        if self.otherwise is not None and self.format not in ROUTES:
            raise ValueError(f"otherwise: is for {', '.join(ROUTES)}")


TargetName = Annotated[str, Field(alias="(name)")]
What = Annotated[WhatToExport, Field(alias="(what)")]


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A file, replaced whole when the export changes."""

    name: TargetName
    what: What
    path: PathText
    kind: Literal["file"] = "file"


@dataclass(frozen=True, slots=True)
class GitTarget:
    """A branch of a Git repository: a commit for each change.  No working tree is touched."""

    name: TargetName
    what: What
    repository: PathText  # a clone, best a bare one
    path: Annotated[str, AfterValidator(_inside)]
    branch: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")] = "main"
    remote: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None  # None: nothing is pushed
    kind: Literal["git"] = "git"


@dataclass(frozen=True, slots=True)
class ConfigMapTarget:
    """A key of a ConfigMap, which server-side apply makes and changes with the pod's service account."""

    name: TargetName
    what: What
    config_map: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=253)]
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)] | None = None
    api_url: HttpUrl = "https://kubernetes.default.svc"
    account_folder: PathText = field(default=ACCOUNT)
    kind: Literal["config_map"] = "config_map"


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A page of the scheduler's address of metrics, written at each request: the HTTP sync of flagd reads it."""

    name: TargetName
    what: What
    kind: Literal["http"] = "http"


KeptTarget = FileTarget | GitTarget | ConfigMapTarget
TargetSettings = Annotated[KeptTarget | HttpTarget, Field(discriminator="kind")]
