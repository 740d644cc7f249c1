"""A child process that serves one object, for code that may hang, die or leak.

Not `multiprocessing`: its spawn and forkserver re-import the parent's main module, which would
load torch into every environment worker. The child imports the target module and nothing else.
"""

from __future__ import annotations

import importlib
import mmap
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from runs.errors import EnvError, TrivetError

START_SECONDS = 300.0
_NUMBER, _TIME = struct.Struct("q"), struct.Struct("d")
_MARKS = _NUMBER.size + _TIME.size


class ChildDied(Exception):
    """The child is gone, or its pipe is; the message holds the end of what it printed."""


class Child:
    """Calls `target(*arguments)` once in a new process, then the result on each message.

    `target` is "module:name" of a callable that returns a callable. Arguments, messages and
    replies are pickled; the child is ours, so pickles never come from outside. A list is served
    item by item and replied to with one list, and `serving` tells how far that is. Raises
    `EnvError` when the child cannot start.
    """

    def __init__(self, target: str, *arguments: Any) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        with tempfile.TemporaryFile() as shared:
            shared.truncate(_MARKS)
            self._marks = mmap.mmap(shared.fileno(), _MARKS)
            self._spawn(theirs, shared.fileno())
        theirs.close()
        self.connection = Connection(ours.detach())
        self.connection.send((target, arguments))
        self._started = False

    def _spawn(self, theirs: socket.socket, shared: int) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "OMP_NUM_THREADS": "1",
        }
        numbers = [str(number) for number in (theirs.fileno(), shared, os.getpid())]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "envs.process", *numbers],
            pass_fds=(theirs.fileno(), shared),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def start(self) -> None:
        """Waits until the child serves; several children start in parallel before this."""
        if self._started:
            return
        try:
            if not self.connection.poll(START_SECONDS):
                raise ChildDied(f"no answer in {START_SECONDS:.0f} seconds")
            error = self.receive()
        except ChildDied as died:
            self.kill()
            raise EnvError(f"An environment process could not start: {died}") from died
        if error is not None:
            self.kill()
            raise EnvError(f"An environment process could not start: {error}")
        self._started = True

    def send(self, message: Any) -> None:
        _mark(self._marks, 0)
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChildDied(self._last_words()) from error

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise ChildDied(self._last_words()) from error

    @property
    def serving(self) -> tuple[int, float]:
        """Index of the item that the child is at, and when it began it (`time.monotonic`)."""
        seen = None
        # Until two looks agree: the child may write between its halves.
        while seen != (seen := self._marks[:]):
            pass
        return _NUMBER.unpack(seen[: _NUMBER.size])[0], _TIME.unpack(seen[_NUMBER.size :])[0]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Ends the child at once (a hanging interpreter is deaf to anything softer)."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self._marks.close()
        self._log.close()

    def _last_words(self) -> str:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        self._log.seek(0)
        printed = self._log.read().decode(errors="replace").strip().splitlines()
        return f"exit code {code}" + (f": {printed[-1]}" if printed else "")


def reply_of(serve: Callable[[Any], Any], message: Any) -> tuple[str, Any]:
    """`("ok", result)`, `("refused", message)` of a TrivetError, or `("raised", message)`."""
    try:
        return "ok", serve(message)
    except TrivetError as error:
        return "refused", str(error)
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"


def _mark(marks: mmap.mmap, number: int) -> None:
    # The time first: whoever reads between the two writes sees an item that began too late,
    # and waits, where the other order would show one that began too early.
    # Each as a whole: pack_into writes zeros before it writes, and 0 is long ago.
    marks[_NUMBER.size :] = _TIME.pack(time.monotonic())
    marks[: _NUMBER.size] = _NUMBER.pack(number)


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone, even while it hangs in the interpreter."""
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(1)


def main() -> None:
    socket_number, shared, parent = (int(number) for number in sys.argv[1:])
    connection = Connection(socket_number)
    marks = mmap.mmap(shared, _MARKS)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    target, arguments = connection.recv()
    module, name = target.split(":")
    try:
        serve = getattr(importlib.import_module(module), name)(*arguments)
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(None)
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if not isinstance(message, list):
            connection.send(reply_of(serve, message))
            continue
        replies = []
        for number, item in enumerate(message):
            _mark(marks, number)
            replies.append(reply_of(serve, item))
        connection.send(replies)


if __name__ == "__main__":
    main()
