"""`python -m ematix_flow.cli` is `flow`."""

from __future__ import annotations

import sys

from ematix_flow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
