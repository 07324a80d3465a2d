"""``python -m swell`` does what ``swell`` does."""

import sys

from swell.cli import main

if __name__ == "__main__":
    sys.exit(main())
