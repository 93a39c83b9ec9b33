"""Two processes of PyTorch that share a tensor.

share_tensor.py [early]: with `early` the producer ends while the consumer still has
the tensor, which PyTorch does not allow.

SPDX-License-Identifier: Apache-2.0
"""

import os
import select
import sys
from multiprocessing.synchronize import Event
from typing import Any

import torch
import torch.multiprocessing as mp


def consume(queue: Any, got: Event, early: bool) -> None:
    """Receive the tensor, add up its values, release it."""
    tensor = queue.get()
    print("sum", tensor.sum().item(), flush=True)
    got.set()
    if early:
        select.select([os.pidfd_open(os.getppid())], [], [], 60)
    del tensor


def main() -> None:
    """Make the tensor, hand it over, keep it until the consumer has ended."""
    early = sys.argv[1:] == ["early"]
    mp.set_start_method("spawn")
    queue, got = mp.Queue(), mp.Event()
    consumer = mp.Process(target=consume, args=(queue, got, early))
    consumer.start()
    tensor = torch.ones(1 << 20, device="cuda")
    queue.put(tensor)
    got.wait(60)
    if early:
        os._exit(0)
    consumer.join()


if __name__ == "__main__":
    main()
