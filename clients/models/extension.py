"""A class of the user's own, by import path: `package.module:Name` in the place of a name that is registered here."""

from __future__ import annotations

import importlib
import os
import sys

from precad.clients.errors import ExtensionError


def imported(kind: str, path: str) -> object:
    """Import what `package.module:Name` names; the configuration wants it as a `kind`. Raises ExtensionError.

    A module beside the configuration, in the working directory, is found too: an installed command does not look
    there by itself.
    """
    module, _, name = path.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        found: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ExtensionError(kind, path, str(error)) from None
    if not callable(found):
        raise ExtensionError(kind, path, f"{name} cannot be called")
    return found
