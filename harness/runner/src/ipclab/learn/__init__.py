"""`ipclab learn`: exercises that a student mends until their check passes."""
# SPDX-License-Identifier: Apache-2.0
