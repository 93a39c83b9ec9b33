"""`ipclab learn`: exercises that are mended until their check passes."""
# SPDX-License-Identifier: Apache-2.0
