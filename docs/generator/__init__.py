"""Makes the parts of the site that come from data: facts, rules, results, pictures.

SPDX-License-Identifier: Apache-2.0
"""
