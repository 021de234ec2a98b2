"""The bundled demonstration: a small trained pair, and traffic from public text and a public trace.

In: nothing but the package.
Out: model folders, a traffic file and the demo's configuration.
Imports: nothing.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
TARGET = _FOLDER / "pair" / "target"
DRAFT = _FOLDER / "pair" / "draft"
HEADS = _FOLDER / "heads"  # of the target: a folder for each kind
TRAFFIC = _FOLDER / "traffic.jsonl.gz"
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
# Share of sessions measured: of the two busy endpoints as many as their verdicts need, with a margin; of the quiet
# ones, which have too few sessions for a verdict at any rate, enough to show a HOLD.
SAMPLE_RATE = 0.3
SAMPLE_RATES = {"code-completion": 0.75, "text-to-sql": 0.6}
# Requests at once.  One at a time is where speculation gains most on a CPU.
CONCURRENCY = 4
CONCURRENCIES = {"text-to-sql": 1}
DEMO_SECRET = "public demo traffic, nothing to protect"  # noqa: S105 - it is public
_CONFIG_HEAD = """\
# The demo's configuration, as `shadowspec demo` wrote it.

[database]
url = "sqlite:///{out}/shadowspec.db"

[privacy]
hash_secret_file = "{out}/demo.secret"

[engine]
seed = {seed}

[dashboard]
data_note = "{data_note}"
# The trace is a recording of 2023: its evidence is never newer than that.
stale_after_s = 1e10

[gate]
# One hypothesis per endpoint: its one slice is the endpoint, which has the whole error level.
max_hypotheses = 1
# The trace lasts one hour, so no whole week of traffic can be asked for.
min_span_s = 0.0
window_s = 0.0
# Sessions have two to three requests; drawing the timed one from the first two leaves few without a pair.
timed_positions = 2
# At most 29% of an endpoint's requests come after them.
max_untimed_share = 0.3
"""
_CONFIG_ENDPOINT = """
[endpoints.{name}]
target = "{target}"
served_models = ["{model}"]
sample_rate = {sample_rate}
match = {{ model = "{model}" }}
# Nothing serves the demo: its verdicts are for the engine that measures.
serving_engine = "shadowspec-torch"
loads = [{{ concurrency = {concurrency}, share = 1.0 }}]

[[endpoints.{name}.candidates]]
name = "draft-k4"
proposer = "draft_model"
draft = "{draft}"
num_speculative_tokens = 4
"""


def demo_config(out: Path, seed: int) -> str:
    """The demo's configuration for results under `out`: the default policy but for some values, each explained."""
    endpoints = (
        _CONFIG_ENDPOINT.format(
            name=name,
            model=model,
            concurrency=CONCURRENCIES.get(name, CONCURRENCY),
            sample_rate=SAMPLE_RATES.get(name, SAMPLE_RATE),
            target=TARGET.as_posix(),
            draft=DRAFT.as_posix(),
        )
        for name, model in SERVED_MODELS.items()
    )
    return _CONFIG_HEAD.format(out=out.as_posix(), seed=seed, data_note=DATA_NOTE) + "".join(endpoints)
