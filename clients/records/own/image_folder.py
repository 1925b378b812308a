"""Images by class: a folder for each class, in it the images, grey or in colour and all of one size. Read by Pillow."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import MissingDataError, OwnRecordsError
from precad.clients.extras import extra
from precad.clients.records.own.described import OwnRecords
from precad.clients.records.own.found import Found, read_as
from precad.clients.records.own.labels import A_NAME, ANOTHER_NAME, class_numbers, look_alike
from precad.clients.records.own.pictures import PLAIN, pixels_of
from precad.clients.records.records import Records
from precad.protos.task.record_fields import is_name

_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "PPM")
_MOST_PIXELS = 2**24


def read_folder(described: OwnRecords) -> Found:
    """Return the images, class by class, each class by file name. Raises MissingDataError, OwnRecordsError.

    A class is the name of its folder. A link that leads out of the folder is refused.
    """
    root = described.path()
    pillow = _pillow(root)
    if not root.is_dir():
        raise OwnRecordsError(root, "a folder with one folder for each class", "a file")
    by_class = {folder: _files(folder, root) for folder in _inside(root, root)}
    files = [(folder.name, file) for folder, own in by_class.items() for file in own]
    if not files:
        raise OwnRecordsError(root, "at least one image in a folder of its class", "none")
    _require_images(by_class, described.class_names)
    images: list[NDArray[np.uint8]] = []
    for _, file in files:
        image = _image(pillow, file)
        if images and image.shape != images[0].shape:
            raise OwnRecordsError(file, f"an image of shape {images[0].shape}, as before it", f"shape {image.shape}")
        images.append(image)

    def at(row: int) -> str:
        return str(files[row][1])

    names = described.class_names or _names_of(
        [file.parent for _, file in files], root, infers=described.infers_classes
    )
    labels, names = class_numbers([name for name, _ in files], names, at, infers=False)
    return Found(Records(np.stack(images), labels), at, names)


def _require_images(by_class: Mapping[Path, Sequence[Path]], class_names: Sequence[str]) -> None:
    """Raise OwnRecordsError for an empty folder, unless the task names its class: this client may have none of it."""
    for folder, own in by_class.items():
        if not own and folder.name not in class_names:
            raise OwnRecordsError(folder, "an image in it, or its class in task.class_names", "neither")


def _names_of(folders: Sequence[Path], root: Path, *, infers: bool) -> tuple[str, ...]:
    """Return the name of each image's folder once, if classes may be taken from folders. Raises OwnRecordsError."""
    if not infers:
        raise OwnRecordsError("task.class_names", "the names of the classes, which are folders", "none")
    classes = list(dict.fromkeys(folders))
    for folder in classes:
        if not is_name(folder.name):
            raise OwnRecordsError(folder, A_NAME, "another text")
    if (i := look_alike([folder.name for folder in classes])) is not None:
        raise OwnRecordsError(classes[i], ANOTHER_NAME, "one that reads as one before it")
    if len(classes) < 2:
        raise OwnRecordsError(root, "a folder for each of two classes at least", "one with images")
    return tuple(folder.name for folder in classes)


def _pillow(root: Path) -> ModuleType:
    return extra(
        "PIL.Image",
        MissingDataError(
            f'{root}: expected Pillow, which reads images, found none installed; install "precad[records]" from where '
            "precad came from"
        ),
    )


def _files(folder: Path, root: Path) -> list[Path]:
    """Raises OwnRecordsError."""
    if not folder.is_dir():
        raise OwnRecordsError(folder, "a folder of one class", "a file")
    return _inside(folder, root)


def _inside(folder: Path, root: Path) -> list[Path]:
    """Return what a folder holds, by name, without hidden files; nothing outside of `root`. Raises OwnRecordsError."""
    with read_as(folder, "a readable folder"):
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in found:
        with read_as(path, "a readable file or folder"):
            if not path.resolve(strict=True).is_relative_to(root.resolve()):
                raise OwnRecordsError(path, f"a file inside {root}", "a link that leads out of it")
    return found


def _image(pillow: ModuleType, file: Path) -> NDArray[np.uint8]:
    """Return one image, (channels, height, width). Raises OwnRecordsError."""
    with read_as(file, f"an image ({', '.join(_FORMATS)})"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of many pixels: we count them ourselves, and damage is an error
        if not file.is_file():
            raise OwnRecordsError(file, "an image", "a folder or a device")
        with file.open("rb") as opened, pillow.open(opened, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise OwnRecordsError(file, f"at most {_MOST_PIXELS} pixels", f"{image.width * image.height}")
            if getattr(image, "n_frames", 1) != 1:
                raise OwnRecordsError(file, "one image", "several in one file")
            if image.mode not in PLAIN:
                raise OwnRecordsError(file, "a grey or colour image without transparency", f"mode {image.mode}")
            pixels: NDArray[np.uint8] = pixels_of(image, file)
    return pixels
