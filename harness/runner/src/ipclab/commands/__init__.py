"""The commands of `ipclab`: the options of each, and how it is called.

Each module has `add(commands)`, which adds its parsers. A parser's default `call` runs
the command with its options and returns the exit code. The modules need Python and no
package: what needs more is imported when the command runs.
"""
# SPDX-License-Identifier: Apache-2.0
