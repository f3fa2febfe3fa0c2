# SPDX-License-Identifier: Apache-2.0
"""Runs the command `tessera`: python -m tessera."""
from ._command import main

main()
