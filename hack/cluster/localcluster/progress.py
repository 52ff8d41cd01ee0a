"""One line a step, with its seconds: a running counter on a terminal, the finished line elsewhere."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show `title` while the block runs and its seconds when it ends; a failure is marked and goes on upwards."""
    start, done = time.monotonic(), threading.Event()
    terminal = sys.stderr.isatty()

    def line(mark: str) -> str:
        return f"{mark} {title:<58} {time.monotonic() - start:6.1f} s"

    def count() -> None:
        while not done.wait(0.5):
            sys.stderr.write("\r" + line("·"))
            sys.stderr.flush()

    counter = threading.Thread(target=count, daemon=True)
    if terminal:
        counter.start()
    mark = "✗"
    try:
        yield
        mark = "✓"
    finally:
        done.set()
        if terminal:
            counter.join()
        sys.stderr.write(("\r" if terminal else "") + line(mark) + "\n")
        sys.stderr.flush()


def note(text: str) -> None:
    """A plain line for people, on standard error: standard output is for answers that scripts read."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
