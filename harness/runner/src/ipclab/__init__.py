"""ipclab: runs the samples and the conformance suite, and reports."""
# SPDX-License-Identifier: Apache-2.0
