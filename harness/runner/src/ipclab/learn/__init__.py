"""`ipclab learn`: exercises that a student changes until their check passes."""
# SPDX-License-Identifier: Apache-2.0
