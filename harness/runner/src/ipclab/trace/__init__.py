"""`ipclab trace`: what a program does with CUDA IPC, and what is wrong with it.

`recording` starts the program and keeps the files that its processes write
(harness/trace). `files` reads them. `story` replays them: it knows what belongs to
which process, and checks the rules of `findings`. Each kind of `things` has a module
for its calls: `memory`, `uses`, `events`, `chunks`, `pools`, `descriptors`,
`processes`; `surroundings` has the rest of the rules. `pictures`, `page` and `perfetto`
show the result.
"""
# SPDX-License-Identifier: Apache-2.0
