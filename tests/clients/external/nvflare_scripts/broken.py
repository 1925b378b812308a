"""Ask for a module that nobody has."""

import precad_has_no_such_module  # noqa: F401
