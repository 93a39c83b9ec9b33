"""`ipclab trace`: what a program does with CUDA IPC, and what is wrong with it.

`recording` starts the program and keeps the files that its processes write
(harness/trace). `files` reads them. `story` replays them, knows what belongs to
which process, and checks the rules of `findings`. `pictures`, `page` and `perfetto`
show the result.
"""
# SPDX-License-Identifier: Apache-2.0
