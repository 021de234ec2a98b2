"""The bundled demonstration: a small trained pair, and traffic replayed from public text and a public trace."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
TARGET = _FOLDER / "pair" / "target"
DRAFT = _FOLDER / "pair" / "draft"
TRAFFIC = _FOLDER / "traffic.jsonl.gz"
MODEL_CARD = _FOLDER / "MODEL_CARD.md"
DATA_NOTE = (
    "A replay built from public text and the arrival times of a public trace, answered by a small model that was "
    "trained for this demo. It is not production traffic."
)
# Endpoint -> the model name that its requests ask for; each endpoint is matched by it.
SERVED_MODELS = {
    "code-completion": "demo-code",
    "text-to-sql": "demo-sql",
    "api-json": "demo-json",
    "maths-tutor": "demo-maths",
    "story": "demo-story",
    "translate": "demo-translate",
}
