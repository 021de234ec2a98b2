"""Trains an EAGLE-3 head on a CPU with speculators, on conversations that `shadowspec export-training` wrote.

    python train.py prompts CORPORA --known prompts.jsonl --number 300 --out FILE    what is asked, by class
    python train.py answers FILE --url URL --model NAME --out LOG                    a log of the target's answers
    python train.py states TARGET PREPARED                                           hidden states for the trainer
    python train.py train TARGET PREPARED --work FOLDER --out FOLDER [-- MORE]       the head
    python train.py acceptance FILE --url URL --model NAME                           what a server accepts of its drafts

`train.sh` runs all steps with what stands between them: `shadowspec export-training` makes a data set of the log, and
`speculators prepare-data` examples of that.  `states` and `train` need the environment of speculators (0.9.0 is what
this was written for), the others Python alone.

speculators takes hidden states from a vLLM server that extracts them, which vLLM 0.33 cannot on a CPU (its connector
opens a CUDA stream), and trains on an accelerator.  Here transformers computes the states, in the files that the
trainer reads.  The trainer is speculators' own, with three changes: its tensors stay on the CPU, the learning rate
falls with the time that is left, and training ends with that time; the head is a running average of the weights.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    import torch

Asked = dict[str, str]  # prompt_class, source and text, as in the benchmark's prompts.jsonl

# Prompts ---------------------------------------------------------------------------------------------------------

SEED: Final = 29
CODE: Final = "Complete this Python function. Answer with the code only.\n\n```python\n{}```"
EDIT: Final = "Rewrite this passage in the present tense and change nothing else:\n\n{}"
PASSAGE: Final = (250, 450)  # characters
FUNCTION: Final = (120, 600)
BOOKS: Final = (
    "Alices_Adventures_in_Wonderland", "David_Copperfield", "Dracula", "Erewhon", "Moby-Dick", "North_and_South",
    "Pride_and_Prejudice", "The_Adventures_of_Tom_Sawyer", "The_Hound_of_the_Baskervilles", "The_Valley_of_Fear",
)  # fmt: skip
TOPICS: Final = (
    "trains", "cheese", "the desert", "robots", "honey", "mountains", "lighthouses", "soap", "owls", "rivers",
    "sleep", "money", "paper", "the piano", "snow", "gardens", "submarines", "trees", "markets", "clocks",
    "penguins", "radio", "salt", "castles", "tigers", "the seasons", "microscopes", "rice", "sailing", "cinema",
    "wind power", "spiders", "magnets", "museums", "the brain", "comets", "cotton", "horses", "languages", "cities",
    "mushrooms", "mirrors", "islands", "coffee", "dinosaurs", "lightning", "kites", "the post office", "shadows",
    "swimming", "bacteria", "gold", "theatre", "rockets", "friendship", "wolves", "cooking", "satellites", "pottery",
    "the ocean floor",
)  # fmt: skip
QUESTIONS: Final = (
    "Explain {} to a ten-year-old.", "Write a short story in which {} matter to a shy student.",
    "What are three common misunderstandings about {}?", "Give me a plan for a one-hour lesson about {}.",
    "Write a short poem about {}.", "Why should I care about {}?", "Draft an email to a friend about {}.",
    "Describe the history of {} in a few sentences.",
)  # fmt: skip


def code_prompts(_corpora: Path) -> Iterator[tuple[str, str]]:
    """Functions of Python's standard library, without their bodies."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("[a-z]*.py")):
        place = path.relative_to(library)
        if {"test", "tests", "site-packages", "lib2to3", "idlelib"} & set(place.parts):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.col_offset == 0 and ast.get_docstring(node):
                text = "\n".join(source.splitlines()[node.lineno - 1 : node.body[0].end_lineno]) + "\n"
                if FUNCTION[0] <= len(text) <= FUNCTION[1]:
                    yield f"{'.'.join(place.with_suffix('').parts)}.{node.name}", CODE.format(text)


def maths_prompts(corpora: Path) -> Iterator[tuple[str, str]]:
    """The training part of GSM8K."""
    for number, line in enumerate((corpora / "gsm8k/train.jsonl").read_text(encoding="utf-8").splitlines()):
        yield f"gsm8k/train/{number}", json.loads(line)["question"].strip()


def chat_prompts(_corpora: Path) -> Iterator[tuple[str, str]]:
    """Made up."""
    for topic in TOPICS:
        for number, question in enumerate(QUESTIONS):
            yield f"made-up/{topic}/{number}", question.format(topic)


def edit_prompts(corpora: Path) -> Iterator[tuple[str, str]]:
    """Passages of books."""
    for book in BOOKS:
        text = (corpora / f"gutenberg_prose/{book}.md").read_text(encoding="utf-8")
        for number, piece in enumerate(text.split("\n\n")):
            passage = " ".join(piece.split())
            if PASSAGE[0] <= len(passage) <= PASSAGE[1] and not passage.startswith("#"):
                yield f"{book}/{number}", EDIT.format(passage)


CLASSES: Final[Mapping[str, Callable[[Path], Iterator[tuple[str, str]]]]] = {
    "code": code_prompts, "maths": maths_prompts, "chat": chat_prompts, "edit": edit_prompts,
}  # fmt: skip


def draw_prompts(corpora: Path, known: Path, number: int) -> Iterator[Asked]:
    """So many of each class, the classes in turn, without those of the file `known`."""
    taken = {json.loads(line)["text"] for line in known.read_text(encoding="utf-8").splitlines()}
    drawn = []
    for found in CLASSES.values():
        left = sorted((source, text) for source, text in found(corpora) if text not in taken)
        drawn.append(random.Random(SEED).sample(left, min(number, len(left))))  # noqa: S311 texts
    for place in range(number):
        for name, prompts in zip(CLASSES, drawn, strict=True):
            if place < len(prompts):
                source, text = prompts[place]
                yield {"part": "head", "prompt_class": name, "source": source, "text": text}


# Answers ---------------------------------------------------------------------------------------------------------

START: Final = datetime(2025, 12, 1, tzinfo=UTC)
SHORT: Final[Mapping[str, Any]] = {"max_tokens": 160, "min_tokens": 24, "stop": ["\n"]}  # to the end of a line
WHOLE: Final[Mapping[str, Any]] = {"max_tokens": 448}


def post_chat(url: str, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """The answer of a server of our own."""
    headers = {"Content-Type": "application/json"}
    request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310 our own server
    with urlopen(request, timeout=timeout) as answer:  # noqa: S310 our own server
        found: dict[str, Any] = json.load(answer)
    return found


def record(prompt: Asked, minute: int, body: Mapping[str, Any], response: Mapping[str, Any]) -> str:
    """A line of the log."""
    fields = {
        "timestamp": (START + timedelta(minutes=minute)).isoformat(),
        "path": "/v1/chat/completions",
        "status": 200,
        "session_id": prompt["source"],
        "request_id": prompt["source"],
        "metadata": {"class": prompt["prompt_class"]},
        "request": body,
        "response": response,
    }
    return json.dumps(fields) + "\n"


def log_answers(prompts: Sequence[Asked], out: Path, given: argparse.Namespace) -> None:
    """Append a record for each prompt, as a mirror of the traffic would; ends with the prompts or with the time."""
    deadline = time.monotonic() + given.seconds

    def ask(place: int) -> tuple[Asked, dict[str, Any], dict[str, Any]] | None:
        if time.monotonic() > deadline or is_stopped(given):
            return None
        is_whole = given.whole_every and place // len(CLASSES) % given.whole_every == 0
        message = {"role": "user", "content": prompts[place]["text"]}
        body = {"model": given.model, "messages": [message], "temperature": 0.0, **(WHOLE if is_whole else SHORT)}
        return prompts[place], body, post_chat(given.url, body, given.seconds + 600)

    num_answered = num_tokens = 0
    with out.open("a", encoding="utf-8") as file, ThreadPoolExecutor(given.concurrency) as pool:
        for answered in as_completed([pool.submit(ask, place) for place in range(len(prompts))]):
            if (found := answered.result()) is None:
                continue
            prompt, body, response = found
            file.write(record(prompt, num_answered, body, response))
            num_answered += 1
            num_tokens += response["usage"]["completion_tokens"]
    print(f"{num_answered} answers, {num_tokens} tokens", flush=True)


def show_acceptance(prompts: Sequence[Asked], given: argparse.Namespace) -> None:
    """What a server that reports its drafts by request (`--per-request-spec-decode-metrics`) accepts, by class."""
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    by_position: Counter[int] = Counter()
    lines: list[str] = []
    for prompt in prompts:
        message = {"role": "user", "content": prompt["text"]}
        body = {"model": given.model, "messages": [message], "temperature": 0.0, "max_tokens": given.max_tokens}
        response = post_chat(given.url, body, 600.0)
        lines.append(record(prompt, len(lines), body, response))
        found = response["metrics"]["speculative_decoding"]
        for name in (prompt["prompt_class"], "all"):
            drafted[name] += found["num_draft_tokens"]
            accepted[name] += found["num_accepted_draft_tokens"]
            steps[name] += found["num_spec_steps"]
        for number, count in enumerate(found["acceptance_histogram"]):
            for position in range(number):
                by_position[position] += count
    for name in drafted:
        share, length = accepted[name] / max(1, drafted[name]), 1 + accepted[name] / max(1, steps[name])
        print(
            f"{name}: {share:.3f} of {drafted[name]} drafted tokens; {length:.2f} tokens in each of {steps[name]} steps"
        )
    shares = [round(by_position[place] / max(1, steps["all"]), 3) for place in sorted(by_position)]
    print(f"accepted by position: {shares}")
    if given.log is not None:
        given.log.write_text("".join(lines), encoding="utf-8")


# Hidden states ---------------------------------------------------------------------------------------------------


def target_layers(num_layers: int) -> list[int]:
    """Whose inputs an EAGLE-3 head reads, by speculators' and vLLM's rule; the last is the output of all layers."""
    return [2, num_layers // 2, num_layers - 3, num_layers]


def write_states(target: Path, prepared: Path, given: argparse.Namespace) -> None:
    """`hidden_states/hs_N.safetensors` for each row of the data set, as `speculators generate-offline-data` writes.

    Rows for which there is no time have none, and the trainer skips them.
    """
    import torch
    from datasets import load_from_disk
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    begun = time.monotonic()
    data = load_from_disk(str(prepared)).with_format(None)
    out = prepared / "hidden_states"
    out.mkdir(exist_ok=True)
    rows = [
        (place, ids) for place, ids in enumerate(data["input_ids"]) if not (out / f"hs_{place}.safetensors").exists()
    ]
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).model.eval()
    seen: dict[int, torch.Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def hook(_module: Any, arguments: tuple[torch.Tensor, ...], named: dict[str, Any]) -> None:
            seen[layer] = arguments[0] if arguments else named["hidden_states"]

        return hook

    layers = target_layers(len(model.layers))
    for layer in layers:
        module = model.layers[layer] if layer < len(model.layers) else model.norm
        module.register_forward_pre_hook(keep(layer), with_kwargs=True)
    done = 0
    for batch in batches(rows, given.batch_tokens):
        width = max(len(ids) for _, ids in batch)
        padded = torch.tensor([ids + [0] * (width - len(ids)) for _, ids in batch])
        with torch.inference_mode():  # what is appended changes nothing before it
            model(padded, use_cache=False)
        stacked = torch.stack([seen[layer] for layer in layers], dim=2)
        for (place, ids), states in zip(batch, stacked, strict=True):
            tensors = {"hidden_states": states[: len(ids)].clone(), "token_ids": torch.tensor(ids)}
            save_file(tensors, out / f"hs_{place}.safetensors")
        done += sum(len(ids) for _, ids in batch)
        if time.monotonic() - begun > given.seconds or is_stopped(given):
            print("no time for the other rows; the trainer skips them", flush=True)
            break
    print(f"states of {done} tokens in {time.monotonic() - begun:.0f} s", flush=True)


def batches(rows: Sequence[tuple[int, list[int]]], tokens: int) -> Iterator[list[tuple[int, list[int]]]]:
    """Rows of like length together, with so many tokens at most; in a drawn order, so that a part of them is fair."""
    found: list[list[tuple[int, list[int]]]] = []
    for row in sorted(rows, key=lambda row: len(row[1])):
        if not found or (len(found[-1]) + 1) * len(row[1]) > tokens:
            found.append([])
        found[-1].append(row)
    random.Random(SEED).shuffle(found)  # noqa: S311 an order
    yield from found


# Training --------------------------------------------------------------------------------------------------------


def write_frequencies(target: Path, prepared: Path, texts: Path | None, out: Path, size: int) -> None:
    """How often tokens occur, for the choice of the draft's: in answers, and at a quarter of that in other texts."""
    import torch
    from transformers import AutoTokenizer

    answered = Counter(torch.load(prepared / "token_freq.pt", weights_only=True))
    counts = Counter({token: 4 * count for token, count in answered.items()})
    if texts is not None:
        tokenizer = AutoTokenizer.from_pretrained(target)
        for ids in tokenizer([prompt["text"] for prompt in read_prompts(texts)])["input_ids"]:
            counts.update(ids)
    torch.save(dict(counts), out)
    chosen = [token for token, _ in counts.most_common(size)]
    share = sum(answered[token] for token in chosen) / answered.total()
    print(f"draft vocabulary: {size} of {len(counts)} tokens, {share:.4f} of the answers", flush=True)


class Average:
    """A running average of a model's weights: what a falling learning rate would give, at whatever time it ends."""

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self._weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._mean = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._decay, self._steps = decay, 0

    def update(self) -> None:
        """After a step."""
        self._steps += 1
        share = 1 - min(self._decay, self._steps / (10 + self._steps))
        for name, weight in self._weights.items():
            self._mean[name].lerp_(weight.detach(), share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average's weights in the block."""
        kept = {name: weight.detach().clone() for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.data.copy_(self._mean[name])
        try:
            yield
        finally:
            for name, weight in self._weights.items():
                weight.data.copy_(kept[name])


def train_head(target: Path, prepared: Path, work: Path, out: Path, given: argparse.Namespace) -> None:
    """Train for `seconds`, write the head and what it gets right of the part held out."""
    import torch
    from speculators.train import cli, trainer
    from speculators.train.config import TrainConfig
    from speculators.train.graceful_shutdown import TrainingInterruptedError

    begun = time.monotonic()
    torch.set_flush_denormal(True)  # most probabilities of a vocabulary are next to none
    cpu = torch.device("cpu")
    trainer.get_local_rank = lambda: cpu  # it moves model and batches there
    torch.accelerator.synchronize = lambda *_: None  # which fails without an accelerator
    work.mkdir(parents=True, exist_ok=True)
    frequencies = work / "token_freq.pt"
    write_frequencies(target, prepared, given.texts, frequencies, given.draft_vocab_size)

    class TimedTrainer(trainer.Trainer):
        """speculators' trainer, to whose learning rate time is what steps are otherwise."""

        def setup_trainer(self) -> None:
            super().setup_trainer()
            self.device_type = cpu.type

        def setup_model(self) -> None:
            if given.warm_norm:  # the head's logits begin at the target's scale
                self.model.norm.load_state_dict(self.model.verifier_norm.state_dict())
            super().setup_model()

        def setup_optimizer(self) -> None:
            super().setup_optimizer()
            self.average = Average(self.model, given.average)
            self.saved = time.monotonic()

        def train_epoch(self, epoch: int, *, step_callback: Callable[[], None] | None = None) -> None:
            self._pace()
            super().train_epoch(epoch, step_callback=self._after_step)

        def val_epoch(self, epoch: int) -> dict[str, float] | None:
            with self.average.applied():
                metrics: dict[str, float] | None = super().val_epoch(epoch)
            return metrics

        def _after_step(self) -> None:
            self.average.update()
            self._pace()

        def _pace(self) -> None:
            passed = (time.monotonic() - begun) / given.seconds
            if passed >= given.at_most or is_stopped(given):
                raise TrainingInterruptedError("the time is over")
            falling = max(given.last_lr, 1 - (1 - given.last_lr) * passed)
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = given.lr * falling * min(1.0, (self.global_step + 1) / given.warmup_steps)

        def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
            """None: a run is short, and the average is saved."""

        def maybe_update_best(self, epoch: int, val_metrics: dict[str, float] | None) -> None:
            """Show, and every few minutes save, instead."""
            self._show(f"epoch {epoch}", val_metrics)
            if time.monotonic() - self.saved > given.save_every:
                self._save(val_metrics)

        def run_training(self) -> None:
            super().run_training()
            metrics = self.val_epoch(self.config.num_epochs)
            self._show("end", metrics)
            self._save(metrics)

        def _save(self, metrics: Mapping[str, float] | None) -> None:
            with self.average.applied():
                self.model.save_pretrained(out)
            report = {
                "seconds": round(time.monotonic() - begun), "steps": self.global_step,
                "tokens": self.global_step * given.batch_tokens, "rows": len(self.train_loader.dataset),
                "held_out_rows": len(self.val_loader.dataset), "held_out": metrics,
            }  # fmt: skip
            (out / "training.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            self.saved = time.monotonic()

        def _show(self, when: str, metrics: Mapping[str, float] | None) -> None:
            found = {name.removesuffix("_epoch"): round(value, 4) for name, value in (metrics or {}).items()}
            wanted = {name: value for name, value in found.items() if name.startswith(("loss", "full_acc", "cond_acc"))}
            print(f"{time.monotonic() - begun:6.0f} s, step {self.global_step}, {when}: {wanted}", flush=True)

    def loaders(**named: Any) -> Any:
        """speculators' own, with the loss on prompts too: the target's distributions are as true there."""
        train_loader, val_loader = made(**named)
        if given.loss_on_prompts:
            data = train_loader.dataset.data
            train_loader.dataset.data = data.map(lambda row: {"loss_mask": torch.ones_like(row["loss_mask"])})
        return train_loader, val_loader

    made = cli.create_train_val_loaders
    cli.create_train_val_loaders = loaders
    cli.Trainer = TimedTrainer
    options = {
        "speculator-type": "eagle3", "verifier-name-or-path": target, "data-path": prepared, "save-path": work,
        "on-missing": "skip", "draft-vocab-size": given.draft_vocab_size, "token-freq-path": frequencies,
        "num-layers": 1, "full-attention-indices": 0, "draft-attn-impl": "sdpa", "hidden-states-dtype": "float32",
        "num-workers": 0, "loss-implementation": "eager", "ttt-steps": given.depth,
        "ttt-step-loss-decay": given.step_decay, "optimizer": "adamw", "scheduler-type": "none", "lr": given.lr,
        "total-seq-len": given.batch_tokens, "epochs": given.epochs, "train-data-ratio": 1 - given.held_out,
        "log-freq": given.log_every,
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    cli.main(
        TrainConfig.resolve([*words, "--no-resume-from-checkpoint", "--no-norm-before-fc", "--fc-norm", *given.more])
    )


def is_stopped(given: argparse.Namespace) -> bool:
    """Whether somebody has asked for an end."""
    return given.stop_file is not None and bool(given.stop_file.exists())


# Commands --------------------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; what stands after `--` is for `speculators train`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    prompts = commands.add_parser("prompts")
    prompts.add_argument("corpora", type=Path)
    prompts.add_argument("--known", type=Path, required=True, help="prompts that are measured: left out")
    prompts.add_argument("--number", type=int, default=300, help="of each class")
    prompts.add_argument("--out", type=Path, required=True)
    answers = commands.add_parser("answers")
    answers.add_argument("prompts", type=Path)
    answers.add_argument("--url", required=True)
    answers.add_argument("--model", required=True, help="its name at the server")
    answers.add_argument("--concurrency", type=int, default=48)
    answers.add_argument("--seconds", type=float, default=300.0, help="after which no more is asked")
    answers.add_argument("--whole-every", type=int, default=16, help="of so many answers one is asked for as a whole")
    answers.add_argument("--out", type=Path, required=True)
    states = commands.add_parser("states")
    states.add_argument("target", type=Path)
    states.add_argument("prepared", type=Path)
    states.add_argument("--batch-tokens", type=int, default=2048)
    states.add_argument("--seconds", type=float, default=300.0)
    train = commands.add_parser("train")
    train.add_argument("target", type=Path)
    train.add_argument("prepared", type=Path)
    train.add_argument("--work", type=Path, required=True, help="for what speculators writes beside the head")
    train.add_argument("--out", type=Path, required=True)
    train.add_argument("--seconds", type=float, default=1200.0)
    train.add_argument("--depth", type=int, default=3, help="drafted tokens")
    train.add_argument("--lr", type=float, default=1.5e-3)
    train.add_argument("--warmup-steps", type=int, default=50)
    train.add_argument("--step-decay", type=float, default=0.8, help="weight of a drafted token's loss to the last's")
    train.add_argument("--batch-tokens", type=int, default=512)
    train.add_argument("--epochs", type=int, default=1000)
    train.add_argument("--held-out", type=float, default=0.05)
    train.add_argument("--draft-vocab-size", type=int, default=4096)
    train.add_argument("--texts", type=Path, help="prompts whose tokens count in the choice of the draft's")
    train.add_argument("--average", type=float, default=0.99, help="decay of the running average of the weights")
    train.add_argument("--last-lr", type=float, default=0.2, help="of the learning rate, what is left at the end")
    train.add_argument("--at-most", type=float, default=1.0, help="train so many times --seconds if not stopped")
    train.add_argument("--save-every", type=float, default=240.0, help="seconds")
    train.add_argument("--loss-on-prompts", action=argparse.BooleanOptionalAction, default=True)
    train.add_argument("--warm-norm", action=argparse.BooleanOptionalAction, default=True)
    train.add_argument("--log-every", type=int, default=1000000)
    acceptance = commands.add_parser("acceptance")
    acceptance.add_argument("prompts", type=Path)
    acceptance.add_argument("--url", required=True)
    acceptance.add_argument("--model", required=True, help="its name at the server")
    acceptance.add_argument("--part", default="", help="of the prompts: their field `part`")
    acceptance.add_argument("--last", type=int, default=12, help="so many from the end of the file")
    acceptance.add_argument("--max-tokens", type=int, default=24)
    acceptance.add_argument("--log", type=Path, help="of these requests too, for `shadowspec replay`")
    for timed in (answers, states, train):
        timed.add_argument("--stop-file", type=Path, help="the step ends early when it exists")
    own, more = list(arguments), []
    if "--" in own:
        place = own.index("--")
        own, more = own[:place], own[place + 1 :]
    given = parser.parse_args(own)
    given.more = more
    return given


def read_prompts(path: Path) -> list[Asked]:
    """Of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """As the docstring says."""
    given = parse(sys.argv[1:])
    if given.command == "prompts":
        drawn = list(draw_prompts(given.corpora, given.known, given.number))
        given.out.write_text("".join(json.dumps(prompt) + "\n" for prompt in drawn), encoding="utf-8")
    elif given.command == "answers":
        log_answers(read_prompts(given.prompts), given.out, given)
    elif given.command == "states":
        write_states(given.target, given.prepared, given)
    elif given.command == "acceptance":
        prompts = [prompt for prompt in read_prompts(given.prompts) if given.part in ("", prompt["part"])]
        show_acceptance(prompts[-given.last :], given)
    else:
        train_head(given.target, given.prepared, given.work, given.out, given)


if __name__ == "__main__":
    main()
