# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Python package cuda.core: a buffer of an IPC pool and an IPC event.

The parent fills the buffer with one value. The child gets both objects through a
queue of multiprocessing and finds this value. Then a kernel that NVRTC compiled to
machine code changes the value, and the parent finds the new one.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from multiprocessing.queues import Queue
from typing import Any

from cuda.bindings import driver
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    EventOptions,
    LaunchConfig,
    Program,
    ProgramOptions,
    launch,
)

COUNT = 4096
FIRST, SECOND = 7, 9
KERNEL = """
extern "C" __global__ void change(unsigned char* data, int by) {
  data[blockIdx.x * blockDim.x + threadIdx.x] += by;
}
"""
DEADLINE = 200  # s


def values(buffer: Any) -> set[int]:
    """The different byte values in a buffer."""
    seen = (ctypes.c_ubyte * COUNT)()
    (error,) = driver.cuMemcpyDtoH(ctypes.addressof(seen), int(buffer.handle), COUNT)
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return set(seen)


def importer(shared: Queue[Any], answers: Queue[Any]) -> None:
    """Waits for the event, changes the buffer, and reports its old contents."""
    device = Device()
    device.set_current()
    stream = device.create_stream()
    buffer = shared.get(timeout=DEADLINE)
    filled = shared.get(timeout=DEADLINE)
    stream.wait(filled)
    stream.sync()
    seen = values(buffer)
    options = ProgramOptions(arch=f"sm_{device.arch}")
    kernel = Program(KERNEL, "c++", options).compile("cubin").get_kernel("change")
    config = LaunchConfig(grid=COUNT // 128, block=128)
    launch(stream, config, kernel, buffer, ctypes.c_int(SECOND - FIRST))
    stream.sync()
    buffer.close(stream=stream)
    stream.sync()
    answers.put(seen)


def main() -> None:
    """The exporter."""
    device = Device()
    device.set_current()
    stream = device.create_stream()
    options = DeviceMemoryResourceOptions(max_size=1 << 21, ipc_enabled=True)
    buffer = DeviceMemoryResource(device, options=options).allocate(
        COUNT, stream=stream
    )
    buffer.fill(FIRST, stream=stream)
    filled = stream.record(options=EventOptions(ipc_enabled=True))

    multiprocessing.set_start_method("spawn")  # CUDA does not survive fork
    shared: Queue[Any] = multiprocessing.Queue()
    answers: Queue[Any] = multiprocessing.Queue()
    child = multiprocessing.Process(target=importer, args=(shared, answers))
    child.start()
    shared.put(buffer)
    shared.put(filled)
    seen = answers.get(timeout=DEADLINE)
    child.join(DEADLINE)

    print(f"{device.name}: importer saw {seen}, exporter sees {values(buffer)}")
    assert (seen, values(buffer), child.exitcode) == ({FIRST}, {SECOND}, 0)
    print("all data is right")


if __name__ == "__main__":
    main()
