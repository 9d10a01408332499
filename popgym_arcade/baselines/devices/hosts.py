"""The processes of a run on several hosts: they find each other, agree, and end together when one is lost.

JAX's own service also ends the others, but only after a while, with a stack trace, and without naming the lost process.
So every process here has a watchdog, a small process of its own that outlives it. The watchdogs are connected. When a
process ends without `leave`, or its host vanishes, every watchdog ends its own process and names the lost one in the
last line of standard error.
"""

import atexit
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

CONNECT_SECONDS = 60
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # a lost host is noticed within 20 seconds
DONE, FAIL = b"done\n", b"fail\n"
SECOND = 1.0  # within which all reports of one event arrive

_watchdog: subprocess.Popen | None = None


# --------------------------------------------------------------------------------------------------------- the process


def join(coordinator_address: str = "", num_processes: int | None = None, process_id: int | None = None) -> None:
    """Connects this process to the others of the run. Call it before JAX is used.

    Arguments that are not given come from the cluster's environment, such as SLURM's variables.

    Args:
        coordinator_address: HOST:PORT of process 0, with a port that is free there
        num_processes: number of processes
        process_id: index of this one, from 0

    Raises:
        ValueError: if arguments are missing and the environment does not have them
        RuntimeError: if the others do not appear, or JAX is already in use
    """
    global _watchdog
    import jax
    from jax.experimental import multihost_utils
    from jax.extend.backend import clear_backends

    clear_backends()  # importing gymnax has already started them, without the other processes' devices
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # only used on CPUs
    jax.distributed.initialize(
        coordinator_address or None, num_processes, process_id, initialization_timeout=CONNECT_SECONDS
    )
    me, count = jax.process_index(), jax.process_count()
    line = [sys.executable, "-I", str(Path(__file__).resolve()), str(me), str(count)]
    start = lambda *where: subprocess.Popen([*line, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    where = b""
    if me == 0:
        _watchdog = start()
        port = _watchdog.stdout.readline().strip()
        where = (coordinator_address.rpartition(":")[0] or socket.gethostname()).encode() + b" " + port
    where = _from_first(where).decode()
    if me > 0:
        _watchdog = start(*where.split())
    if _watchdog.stdout.readline() != b"ready\n":
        raise RuntimeError(f"the watchdog of process {me} cannot connect to that of process 0, {where}")
    atexit.register(abandon, 1)  # before JAX's own exit handler, which would wait for the others after an error
    multihost_utils.sync_global_devices("watchdogs are ready")


def note(text: str) -> None:
    """A line for the watchdog to print after it names the lost process; the last one counts. Ignored without `join`."""
    if _watchdog:
        _watchdog.stdin.write(b"note " + os.fsencode(text) + b"\n")
        _watchdog.stdin.flush()


def leave() -> None:
    """Says that this process ends as planned. All processes call it. No effect without `join`, or a second time."""
    global _watchdog
    if _watchdog:
        _watchdog.stdin.write(DONE)
        _watchdog.stdin.close()
        _watchdog.wait()
        _watchdog = None


def abandon(code: int) -> None:
    """Ends this process at once with that exit code, and thereby the others, if it has joined any.

    For an error that only this process has encountered and reported.
    """
    if _watchdog:
        _watchdog.stdin.write(FAIL)
        _watchdog.stdin.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def largest(number: int) -> int:
    """The largest number that a process passes; all of them must call it. A single process gets its own."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return number
    return int(multihost_utils.process_allgather(np.int32(number)).max())


def from_first(text: str) -> str:
    """The text that process 0 passes, at most 4,096 bytes; all processes must call it."""
    return os.fsdecode(_from_first(os.fsencode(text)))


def _from_first(text: bytes) -> bytes:
    """The bytes that process 0 passes, at most 4,096 and not ending in zeros."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return text
    padded = np.frombuffer(text.ljust(4096, b"\0"), np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(padded)).rstrip(b"\0")


def wait_for_all(what: str) -> None:
    """Returns once all processes have called it."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


# --------------------------------------------------------------------------------------------------------- the watchdog


def watchdog(me: int, count: int, host: str = "", port: str = "0") -> None:
    """The main function of the watchdog of process `me`, its parent, which holds its standard input and output."""
    worker = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # its process handles them, and then leaves
        signal.signal(number, signal.SIG_IGN)
    peers = connect_to_first(me, host, int(port)) if me else accept_others(count)
    print("ready", flush=True)
    news, text = watch(me, peers)
    if not news:
        return
    lost = min(news, key=lambda process: news[process].when)  # one lost process takes others with it
    if lost == me and news[me].told:
        return
    if me not in news and os.getppid() == worker:
        os.kill(worker, signal.SIGKILL)
        while os.read(0, 4096):  # until it has ended and written everything
            pass
    line = f"process {lost} of {count}{' (this one)' * (lost == me)} was lost, which ended the run"
    os.write(2, os.fsencode(f"{line}{'; ' * bool(text)}{text}\n"))


def accept_others(count: int) -> dict[socket.socket, int]:
    """The connections of process 0's watchdog, with the process at the other end of each."""
    found = {}
    with socket.create_server(("", 0)) as server:
        print(server.getsockname()[1], flush=True)
        server.settimeout(CONNECT_SECONDS)
        while len(found) < count - 1:
            peer, _ = server.accept()
            keep_alive(peer)
            found[peer] = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
    return found


def connect_to_first(me: int, host: str, port: int) -> dict[socket.socket, int]:
    """The only connection of any other process's watchdog."""
    peer = socket.create_connection((host, port), CONNECT_SECONDS)
    peer.settimeout(None)
    keep_alive(peer)
    peer.sendall(me.to_bytes(4, "big"))
    return {peer: 0}


def keep_alive(peer: socket.socket) -> None:
    """Makes the system notice that the other end of a connection is gone."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # not on every system
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Exit(NamedTuple):
    """The end of a process: seconds since 1970, and whether it has said why."""

    when: float
    told: bool


def watch(me: int, peers: dict[socket.socket, int]) -> tuple[dict[int, Exit], str]:
    """Waits until its own process leaves, or until a second after a loss. Returns the losses and the last note."""
    news, text, begun_lines, until = {}, "", {}, None

    def tell(line: bytes, but=None) -> None:
        for peer in peers:
            if peer is not but:
                with contextlib.suppress(OSError):
                    peer.sendall(line)

    def hear(process: int, loss: Exit, source) -> None:
        if process not in news:
            news[process] = loss
            tell(f"lost {process} {loss.when} {int(loss.told)}\n".encode(), but=source)

    with selectors.DefaultSelector() as selector:
        for source in (0, *peers):
            selector.register(source, selectors.EVENT_READ)
        while until is None or time.time() < until:
            for key, _ in selector.select(None if until is None else max(0, until - time.time())):
                source, data = key.fileobj, b""
                with contextlib.suppress(OSError):  # a connection that broke
                    data = os.read(key.fd, 4096)
                *lines, begun_lines[source] = (begun_lines.get(source, b"") + data).split(b"\n")
                for line in lines:
                    word, _, rest = os.fsdecode(line).partition(" ")
                    if word == "note":
                        text = rest
                    elif word == "fail":
                        hear(me, Exit(time.time(), True), source)
                    elif word == "lost":
                        process, when, told = rest.split()
                        hear(int(process), Exit(float(when), told == "1"), source)
                    elif word == "done" and source == 0:
                        tell(DONE)
                        return {}, text
                    elif word == "done":
                        selector.unregister(source)
                if not data and b"done" not in lines:
                    selector.unregister(source)
                    hear(me if source == 0 else peers[source], Exit(time.time(), False), source)
                if news and until is None:
                    until = time.time() + SECOND
    return news, text


if __name__ == "__main__":
    watchdog(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
