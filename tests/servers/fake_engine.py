"""The program of an engine: it serves the fake of that engine as its command line says, as long as it is left alone.

`FAKE_ENGINE` names a folder.  There it leaves a file for each process that it started, named by the process's id, with
the command line of the first.  A file `broken` there makes it end at once; a file `ends` or `hangs` holds the number of
completions after which a server that speculates ends, or answers no more and leaves a file `hanging`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.servers.fake_llamacpp import FakeLlamaCpp
from tests.servers.fake_server import FakeServer

DEPTHS = ("--spec-ngram-simple-size-m", "--spec-draft-n-max")


def main() -> None:
    """Serve until killed."""
    words, folder = sys.argv[1:], Path(os.environ["FAKE_ENGINE"])
    worker = subprocess.Popen(["sleep", "600"])
    (folder / f"{os.getpid()}.process").write_text(json.dumps(words))
    (folder / f"{worker.pid}.process").touch()
    print(f"\x1b[31mloading\x1b[0m {word_after(words, '--port')}", flush=True)
    if find_spec("of_the_working_directory") is not None:
        sys.exit("modules of the working directory take the place of its own")
    if (folder / "broken").exists():
        sys.exit("no memory")
    asyncio.run(serve(server_of(words), int(word_after(words, "--port") or 0), folder))


def server_of(words: list[str]) -> FakeServer:
    """The fake that the command line asks for."""
    if name := word_after(words, "--alias"):
        depth = next((number for option in DEPTHS if (number := word_after(words, option))), "0")
        return FakeLlamaCpp(
            int(depth), model=name, slots=int(word_after(words, "--parallel") or 0), has_metrics="--metrics" in words
        )
    drafting = json.loads(word_after(words, "--speculative-config") or "{}")
    if not drafting and "--per-request-spec-decode-metrics" in words:
        sys.exit("--per-request-spec-decode-metrics requires speculative decoding")  # as 0.32
    return FakeServer(
        drafting.get("num_speculative_tokens", 0),
        model=word_after(words, "--served-model-name") or "",
        level=word_after(words, "--per-request-spec-decode-metrics") or "none",
        tells_queue="--enable-per-request-metrics" in words,
        tells_cached="--enable-prompt-tokens-details" in words,
        drafting=drafting if os.environ.get("VLLM_SERVER_DEV_MODE") == "1" else None,
    )


async def serve(server: FakeServer, port: int, folder: Path) -> None:
    """Serve; after a number of completions, end or hang as asked."""
    answer = server._complete
    number = 0

    async def complete(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal number
        number += 1
        if server.num_speculative_tokens and number > limit(folder / "ends"):
            os._exit(7)
        if server.num_speculative_tokens and number > limit(folder / "hangs"):
            (folder / "hanging").touch()
            await asyncio.sleep(600)
        await answer(body, writer)

    server._complete = complete  # type: ignore[method-assign]
    listening = await asyncio.start_server(server.serve, word_after(sys.argv, "--host"), port)
    await listening.serve_forever()


def limit(path: Path) -> int:
    return int(path.read_text()) if path.exists() else sys.maxsize


def word_after(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words else None


if __name__ == "__main__":
    main()
