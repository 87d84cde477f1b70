"""`python -m docs REPOSITORY SITE`."""

import sys

from docs.build import main

if __name__ == "__main__":
    sys.exit(main())
