"""`python -m accuracy.report.site REPOSITORY SITE`."""

import sys

from accuracy.report.site.build import main

if __name__ == "__main__":
    sys.exit(main())
