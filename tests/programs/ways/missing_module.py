"""Imports what is not there."""

import no_such_module_of_anybody  # noqa: F401
