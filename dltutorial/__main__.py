"""``python -m dltutorial …`` is the same program as ``dltutorial …``."""

import sys

from dltutorial.cli import main

if __name__ == "__main__":
    sys.exit(main())
