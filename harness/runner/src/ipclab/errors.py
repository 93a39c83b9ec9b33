"""The two ways in which a command ends early: one line each, no traceback."""
# SPDX-License-Identifier: Apache-2.0


class UsageError(Exception):
    """The request makes no sense; exit code 2."""


class HarnessError(Exception):
    """The harness itself cannot continue; exit code 3."""
