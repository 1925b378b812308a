"""A class or function of the user's own, by import path: `package.module:Name` in the place of a registered name."""

from __future__ import annotations

from precad.clients.app import App
from precad.clients.own_code import imported as imported_own


def imported(kind: str, path: str, *, of_app: str | None = None) -> object:
    """Import what `package.module:Name` names; the configuration wants it as a `kind`. Raises ExtensionError.

    A module beside the configuration, or in the working directory, is found too (`precad.clients.own_code`). Where
    `path` names an app, the result is its attribute `of_app`, which may be another name.
    """
    found = imported_own(kind, path)
    return getattr(found, of_app) if isinstance(found, App) and of_app is not None else found
