"""`ipclab mutants`: does the suite notice a driver that is wrong in one place?

faults                 which faults there are, and who must notice them
changed, plan          which of them run, and with which tests next
planting               runs one test with the library of faults in front of the driver
trials                 makes results from what the tests did
journal, digests       keep the results on disk, and say which of them are still right
matrix, report         the kill matrix as a document, a page and a table
command, twin          the command itself, and its comparison with an earlier library
"""
# SPDX-License-Identifier: Apache-2.0
