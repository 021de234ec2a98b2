"""What the command does to its process: no copy of memory after a crash, and one line where output has no room."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

MAIN = [sys.executable, "-m", "shadowspec"]


def test_a_crash_leaves_no_core() -> None:
    """A process that a command starts dies of a signal that dumps: the system says that it did not."""
    program = """
import resource, subprocess, sys
from shadowspec.cli.main import main
sys.argv = ["shadowspec", "--version"]
try:
    main()
except SystemExit:
    pass
print(resource.getrlimit(resource.RLIMIT_CORE))
print(subprocess.run([sys.executable, "-c", "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))"],
                     capture_output=True, text=True).stdout)
"""

    def permit() -> None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, preexec_fn=permit, check=True
    )
    assert done.stdout.count("(0, 0)") == 2


def test_output_without_room_is_no_internal_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*MAIN, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2, "error: standard output or a temporary file: No space left on device; make room, then run it again\n"
    )  # fmt: skip
