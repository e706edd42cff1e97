"""sys.exit with a text is exit code 1."""

import sys

sys.exit("the data set is empty")
