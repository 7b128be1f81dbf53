"""`python -m metalabelnet`."""

import sys

from metalabelnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
