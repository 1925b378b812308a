"""Pixels of a picture as a person sees it: turned as its camera says, with the colours of its palette."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import OwnRecordsError

PLAIN: Final = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}
"""Kinds of pixels that a folder may hold, and what each is read as: one channel or three."""
_WITH_TRANSPARENCY: Final = frozenset(("RGBA", "RGBa", "LA", "La", "PA"))
_ORIENTATION: Final = 0x0112
"""The EXIF tag that says how a camera was held."""


def is_picture(value: object) -> bool:
    """Tell whether a value is an image of Pillow."""
    return type(value).__module__.startswith("PIL.")


def pixels_of(image: Any, where: object) -> NDArray[Any]:
    """Return an image's pixels, (channels, height, width). Raises OwnRecordsError for colours with transparency.

    An index into a palette says nothing by itself: the colour is read in its place.
    """
    image.load()  # Pillow itself turns a TIFF as it reads the pixels, and forgets the tag with that
    if "transparency" in image.info or image.mode in _WITH_TRANSPARENCY:
        raise OwnRecordsError(where, "a grey or colour image without transparency", "one with")
    orientation = image.getexif().get(_ORIENTATION, 1)
    pixels = upright(np.asarray(image.convert(PLAIN.get(image.mode, image.mode))), orientation)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0))


def upright(pixels: NDArray[Any], orientation: object) -> NDArray[Any]:
    """Return pixels (height, width, ..) as EXIF's orientation, 1 to 8, says to show them; another number means 1."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels
