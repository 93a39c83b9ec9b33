"""`ipclab learn`: exercises that a student changes until their check passes."""
# SPDX-License-Identifier: Apache-2.0

ACTIONS = {
    "next": "hand out the next exercise, or the one you name; check it at each save",
    "check": "check an exercise once; exit code 0 if it passes",
    "hint": "one more hint",
    "solution": "the solutions, if the exercise has passed, or with --show",
    "reset": "hand an exercise out again; your copy is kept beside it",
    "list": "all exercises and your progress",
    "open": "show the lesson of the exercise: on a desktop the page, if the site was "
    "built, elsewhere its text",
}
