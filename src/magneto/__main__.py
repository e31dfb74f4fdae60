"""`python -m magneto` is the command `magneto`."""

import sys

from magneto.cli import main

sys.exit(main())
