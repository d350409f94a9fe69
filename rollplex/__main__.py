"""``python -m rollplex``: the command line, where the ``rollplex`` script is not on the path."""

import sys

from rollplex.cli import main

if __name__ == "__main__":
    sys.exit(main())
