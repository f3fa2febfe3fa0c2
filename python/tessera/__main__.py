# SPDX-License-Identifier: Apache-2.0
"""python -m tessera: the command `tessera`."""
from ._command import main

main()
