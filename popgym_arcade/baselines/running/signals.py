"""Ctrl-C and SIGTERM: the current chunk of updates is finished, the state is saved, and the run can be resumed."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from popgym_arcade.baselines.devices import hosts

_WORKER = ThreadPoolExecutor(1)


@contextlib.contextmanager
def stop_signals(after: str = "this chunk") -> Iterator[list[int]]:
    """Within the context, Ctrl-C and SIGTERM are only noted in the list it yields; a second one ends the process."""
    received: list[int] = []

    def note(number, _frame):
        if received:
            os._exit(128 + number)
        received.append(number)
        text = f"\nstopping after {after}; a second signal stops at once\n"
        os.write(2, text.encode())  # print may be interrupted here

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    previous = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def stop_signal(received: list[int]) -> int:
    """The signal that reached this process or another one of the run; 0 if none did."""
    return hosts.largest(received[0] if received else 0)


def run_in_worker(function: Callable, *args: Any) -> Any:
    """`function(*args)`, run in another thread: Python handles no signals while the main thread is inside XLA."""
    return _WORKER.submit(lambda: jax.block_until_ready(function(*args))).result()
