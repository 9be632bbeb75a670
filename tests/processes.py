"""Processes that are connected, and run the functions of tests, started once: by gloo, and where there are two GPUs by
NCCL for tensors on these.
"""

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 600
"""until a process that waits for another gives up"""


class Processes:
    """Each runs what it is given, a function that can be imported, with its rank's group of so many processes."""

    def __init__(self, count: int, directory: Path) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        # What all of them import, here once: the product, and what an optimiser's first step imports.
        context.set_forkserver_preload(["experiments.report.report", "experiments.train.loop", "torch._dynamo"])
        ends = [context.Pipe() for _ in range(count)]
        self._pipes: list[Connection] = [here for here, _ in ends]
        store = f"file://{directory / 'store'}"
        self._processes = [
            context.Process(target=_serve, args=(there, rank, count, store), daemon=True)
            for rank, (_, there) in enumerate(ends)
        ]
        for process in self._processes:
            process.start()

    def run(self, count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What ``function(group, *arguments)`` returns in the first ``count`` processes, in rank order."""
        for pipe in self._pipes[:count]:
            pipe.send_bytes(pickle.dumps((count, function, arguments)))
        answers = []
        for pipe in self._pipes[:count]:
            assert pipe.poll(2 * SECONDS), "a process does not answer"
            answers.append(pickle.loads(pipe.recv_bytes()))
        for error, _ in answers:
            assert error is None, error
        return [value for _, value in answers]

    def end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(10)


def _serve(pipe: Connection, rank: int, count: int, store: str) -> None:
    # As torchrun tells it; nobody listens at the port, because they meet at a file.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    timeout = timedelta(seconds=SECONDS)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.device_count() > 1 else "gloo"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=count, timeout=timeout)
    groups = {size: dist.new_group(list(range(size)), timeout=timeout) for size in range(1, count + 1)}
    while True:
        size, function, arguments = pickle.loads(pipe.recv_bytes())
        try:
            answer = None, function(groups[size], *arguments)
        except Exception:
            answer = traceback.format_exc(), None
        pipe.send_bytes(pickle.dumps(answer))
