"""Entry point of `python -m magneto`."""

import sys

from magneto.cli import main

sys.exit(main())
