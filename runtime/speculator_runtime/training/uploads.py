"""Copies checkpoints to S3 in the background: the latest wins, training never waits for the network."""

import logging
import threading
from pathlib import Path

from speculator_runtime.storage import Ledger, StoreError, put_checkpoint

log = logging.getLogger(__name__)


class CheckpointUploads:
    """One thread that uploads the newest checkpoint folder it was given."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._wake = threading.Condition()
        self._next: Path | None = None
        self._closing = False
        self.current: Path | None = None  # must not be removed meanwhile
        self.uploaded = 0
        self.failed = 0
        self._thread = threading.Thread(target=self._run, name="checkpoint-uploads", daemon=True)
        self._thread.start()

    def put(self, folder: Path) -> None:
        """Upload this folder; one that is still waiting is skipped."""
        with self._wake:
            self._next = folder
            self._wake.notify()

    def close(self, timeout: float) -> bool:
        """Finish what is waiting, within `timeout` seconds; returns whether it ended."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._wake:
                while self._next is None and not self._closing:
                    self._wake.wait()
                if self._next is None:
                    return
                self.current, self._next = self._next, None
            try:
                put_checkpoint(self._ledger, self.current, {"folder": self.current.name})
                self.uploaded += 1
            except (StoreError, OSError) as error:
                # The folder may have been superseded and removed meanwhile; the next checkpoint is tried again.
                self.failed += 1
                log.warning("checkpoint %s was not copied to S3: %s", self.current.name, error)
            finally:
                self.current = None
