"""Lesson 71: the exporter with PyTorch. Lends tensors to a C++ program and
borrows tensors of that program.

    python3 samples/71_pytorch_tensor/producer.py PATH [TENSORS]
    ci/ipclab sample 71 --role importer PATH

Exit codes: 0 if all values were right, no other element was touched, no memory is
in limbo and all counts are 0; 2 if the number of arguments is wrong; 77 if there is
no PyTorch with a GPU; 1 otherwise.

SPDX-License-Identifier: Apache-2.0
"""

import os
import random
import socket
import struct
import sys
from pathlib import Path

try:
    import torch
    from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor
except ImportError:
    sys.exit(print("SKIP: needs PyTorch") or 77)

PACKET = struct.Struct("@q66sqq64sq64sqq2q2q")  # Tensor of tensor.h
EXPORTER_VALUE = 1000000
IMPORTER_VALUE = 2000000
UNTOUCHED = -1


class Channel:
    """Named steps over a socket, as in samples/common/channel.h."""

    def __init__(self, path):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = os.umask(0o177)
        listener.bind(path)
        os.umask(mask)
        listener.listen()
        listener.settimeout(120)
        print(f"exporter  listens at [{path}]", flush=True)
        try:
            self.socket, _ = listener.accept()
        finally:
            Path(path).unlink()
        peer = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", peer)[1] != os.getuid():
            sys.exit("the importer belongs to another user")
        self.socket.settimeout(20)

    def send(self, step, data=b""):
        self.socket.send(step.encode() + b"\0" + data)

    def receive(self, step):
        name, _, data = self.socket.recv(4096).partition(b"\0")
        if name.decode() != step:
            sys.exit(f"waits for '{step}', the importer is at '{name.decode()}'")
        return data


def numbered(tensor, first):
    """Return first, first + 1 ... in the shape of the tensor."""
    numbers = torch.arange(tensor.numel(), dtype=torch.int32, device="cuda")
    return numbers.reshape(tensor.shape) + first


def random_view(chance):
    """Return a matrix with strides and an offset, and its whole storage."""
    rows, columns = chance.randint(1, 64), chance.randint(1, 64)
    step = chance.randint(1, 3)
    pitch = columns * step + chance.randint(0, 9)
    offset = chance.randint(0, 99)
    whole = torch.full(
        (offset + rows * pitch,), UNTOUCHED, dtype=torch.int32, device="cuda"
    )
    view = whole.as_strided((rows, columns), (pitch, step), offset)
    return (view.t() if chance.random() < 0.5 else view), whole


# ! [lend]
def lend(channel, view, counts):
    """Write values into the view, send it, and wait until it is released.

    Return how many elements are wrong then. Append the place of its count to `counts`.
    """
    view.copy_(numbered(view, EXPORTER_VALUE))  # the event makes the importer wait
    _, sent = reduce_tensor(view)
    _, size, stride, offset, _, _, device, handle, *rest = sent
    storage_bytes, storage_offset, _, counter, index, event, must_wait = rest
    if handle[1:2] == b"c" and len(handle) != 66:  # the importer refuses other kinds
        sys.exit(f"PyTorch {torch.__version__} has another format of handles")
    packet = PACKET.pack(
        *(device, handle, storage_bytes, storage_offset, counter, index),
        *(event or b"", must_wait, offset, *size, *stride),
    )
    counts.append((counter.decode(), index))
    channel.send("tensor", packet)
    channel.receive("released")
    return int((view != numbered(view, IMPORTER_VALUE)).sum())


# ! [lend]


# ! [borrow]
def borrow(channel):
    """Use and release the other side's tensor. Return how many elements were wrong."""
    device, handle, storage_bytes, storage_offset, counter, index, *rest = (
        PACKET.unpack(channel.receive("tensor"))
    )
    event, must_wait, offset, *shape = rest
    tensor = rebuild_cuda_tensor(
        *(torch.Tensor, shape[:2], shape[2:], offset, torch.storage.TypedStorage),
        *(torch.int32, device, handle, storage_bytes, storage_offset, False),
        *(counter.rstrip(b"\0"), index, event, bool(must_wait)),
    )
    wrong = int((tensor != numbered(tensor, IMPORTER_VALUE)).sum())
    tensor.copy_(numbered(tensor, EXPORTER_VALUE))
    torch.cuda.synchronize()
    del tensor  # closes the handle, decreases the count
    channel.send("released")
    return wrong


# ! [borrow]


def in_use(counter, index):
    """Return whether the counter file says that a tensor is still in use."""
    file = Path("/dev/shm") / counter.lstrip("/")
    if not file.exists():  # the last user has removed it
        return False
    return struct.unpack_from("q", file.read_bytes(), 64 + 8 * index)[0] != 0


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(print(__doc__.partition("\n\n")[2]) or 2)
    if not torch.cuda.is_available():
        sys.exit(print("SKIP: PyTorch sees no GPU") or 77)
    count = int(sys.argv[2]) if len(sys.argv) == 3 else 3
    chance = random.Random(71)
    torch.zeros(1, device="cuda")
    before = torch.cuda.memory_allocated()
    channel = Channel(sys.argv[1])
    channel.send("tensors", struct.pack("@i", count))

    wrong, touched, counts, kept = 0, 0, [], []
    for _ in range(count):
        view, whole = random_view(chance)
        wrong += lend(channel, view, counts)
        touched += int((whole != UNTOUCHED).sum()) - view.numel()
        wrong += borrow(channel)
        kept.append(whole)  # so that storages lie at many offsets
        if len(kept) > 20:
            del kept[chance.randrange(len(kept))]

    del view, whole, kept
    torch.cuda.ipc_collect()
    limbo = torch.cuda.memory_allocated() - before
    busy = sum(in_use(*one) for one in counts)
    print(
        f"exporter  has lent and borrowed {count} tensors of PyTorch: {wrong} wrong, "
        f"{touched} touched outside, {limbo} bytes in limbo, {busy} counts above 0"
    )
    return 1 if wrong or touched or limbo or busy else 0


if __name__ == "__main__":
    sys.exit(main())
