"""`ipclab trace`: what a program does with CUDA IPC, and what is wrong with it.

The way of a trace: `recording` starts the program and keeps the files that its
processes write (harness/trace); `files` reads them; `story` replays them and knows
what belonged to whom; `findings` holds the story to the rules; `pictures`, `page`
and `perfetto` show it.
"""
# SPDX-License-Identifier: Apache-2.0
