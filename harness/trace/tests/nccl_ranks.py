"""Two processes of PyTorch, each with a GPU, that add up an array with NCCL.

nccl_ranks.py FOLDER: the ranks meet at a file in this empty folder. Each rank prints
the first number of its sum, 3.0. The exit code is 1 if a rank fails.

SPDX-License-Identifier: Apache-2.0
"""

import datetime
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
DEADLINE = datetime.timedelta(seconds=60)


def rank(number: int, folder: str) -> None:
    """Add up an array with the other rank, twice."""
    torch.cuda.set_device(number)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{folder}/meet",
        rank=number,
        world_size=RANKS,
        timeout=DEADLINE,
        device_id=torch.device("cuda", number),
    )
    for count in (1 << 10, 1 << 22):
        values = torch.full((count,), float(number + 1), device="cuda")
        dist.all_reduce(values)
        torch.cuda.synchronize()
        assert bool((values == 3.0).all()), f"rank {number} has {values[0].item()}"
    print("sum", values[0].item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank, (sys.argv[1],), RANKS)
