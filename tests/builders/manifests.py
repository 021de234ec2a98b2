"""The Kubernetes manifests, parsed."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.manifests import Document

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = (CHECKOUT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def written(config_map: Document, folder: Path) -> Path:
    """The files of a ConfigMap, in a folder in the place of /etc/shadowspec; the configuration's path."""
    for name, text in config_map["data"].items():
        (folder / name).write_text(text.replace("/etc/shadowspec/", f"{folder}/"), encoding="utf-8")
    return folder / "shadowspec.toml"
