"""A trainer of another environment, as a child that does a round when it is asked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pairs import CHECKOUT
from runs.errors import TrivetError


class PeerError(TrivetError):
    """A peer that is not there or failed; the message is the failing command and its last words."""


class Peer:
    """`python -m benchmarks.peers.<script>` in the environment of `python`, kept alive.

    Requests and answers are lines of JSON on its stdin and stdout. It is a child of this process,
    so the clock of `benchmarks.pairs` sees its CPU time. Raises PeerError.
    """

    def __init__(self, script: str, python: str | None, plan: dict[str, Any]) -> None:
        module = f"benchmarks.peers.{script}"
        self.command = f"{python or 'python'} -m {module}"
        if not python:
            raise PeerError(f"{module}: no environment given, see benchmarks/README.md")
        if not Path(python).is_file():
            raise PeerError(f"{self.command}: there is no such file")
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed with the child
        path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
        self._child = subprocess.Popen(
            [python, "-m", module],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.ready = self.ask(plan)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request, one answer."""
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(f"{self.command} ended: {self._last_words()}")
        return json.loads(line)

    def close(self) -> None:
        """End the child; a second call does nothing."""
        if self._errors.closed:
            return
        assert self._child.stdin is not None and self._child.stdout is not None
        # Where it ended before it had read everything, `ask` has said so already.
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._errors.close()

    def _last_words(self) -> str:
        self._child.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self._child.returncode}, without a word"
