"""Files of tensors in the format `safetensors`: a header in JSON, then bytes. Reading one runs nothing.

Eight bytes hold the header's length, little-endian. The header has a dtype, a shape and two offsets for each name.
Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from precad.clients.errors import AdapterError
from precad.clients.new_file import new_file

_DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_HEADER: Final = 100_000_000
_METADATA: Final = "__metadata__"
_EXPECTED: Final = "expected a safetensors file"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a new file. Equal tensors and metadata give equal bytes. Raises OSError; then there is none."""
    header: dict[str, Any] = {_METADATA: dict(metadata)}
    parts, stop = [], 0
    for name, value in sorted(tensors.items()):
        parts.append(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        start, stop = stop, stop + len(parts[-1])
        header[name] = {"dtype": _NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [start, stop]}
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with new_file(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(parts)


def read_tensors(file: BinaryIO, name: Path) -> dict[str, Tensor]:
    """Return the tensors of an open file by name. Raises AdapterError for another format; OSError."""
    length, size = _lengths(file, name)
    file.seek(8)
    try:
        header = json.loads(file.read(length), object_pairs_hook=lambda pairs: _once(pairs, name))
        rows = {key: _row(row, size) for key, row in header.items() if key != _METADATA}
    except AdapterError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise AdapterError(name, _EXPECTED, "a header that is not one's") from None
    _require_side_by_side(rows, size, name)
    found = {}
    for key, (dtype, shape, begin, n_bytes) in rows.items():
        file.seek(8 + length + begin)
        content = bytearray(file.read(n_bytes))
        try:
            found[key] = torch.frombuffer(content, dtype=dtype).view(shape) if n_bytes else torch.empty(shape).to(dtype)
        except (RuntimeError, ValueError, TypeError, OverflowError):
            raise AdapterError(f"{name}, tensor {key!r}", "expected a shape that a tensor has", str(shape)) from None
    return found


def _lengths(file: BinaryIO, name: Path) -> tuple[int, int]:
    """Return the bytes of the header, and of all that follows it. Raises AdapterError."""
    start, n_bytes = file.read(8), file.seek(0, 2)
    if len(start) < 8:
        raise AdapterError(name, f"{_EXPECTED} of 10 bytes or more", f"{n_bytes}")
    (length,) = struct.unpack("<Q", start)
    if not 2 <= length <= _MOST_HEADER:
        raise AdapterError(name, f"{_EXPECTED} with a header of 2 to {_MOST_HEADER} bytes", f"{length}")
    if n_bytes < 8 + length:
        raise AdapterError(name, f"{_EXPECTED} of {8 + length} bytes or more, as its header says", f"{n_bytes}")
    return length, n_bytes - 8 - length


def _once(pairs: list[tuple[str, Any]], name: Path) -> dict[str, Any]:
    """Return an object of the header. Raises AdapterError for a name that is there twice: which one holds is open."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise AdapterError(f"{name}, name {key!r}", "expected it once in the header", "it twice")
        found[key] = value
    return found


def _require_side_by_side(
    rows: Mapping[str, tuple[torch.dtype, tuple[int, ...], int, int]], size: int, name: Path
) -> None:
    """Refuse tensors that share bytes, and bytes of no tensor. Raises AdapterError."""
    stop = 0
    for key, (_, _, begin, n_bytes) in sorted(rows.items(), key=lambda row: row[1][2:]):
        if begin != stop:
            raise AdapterError(f"{name}, tensor {key!r}", f"expected its bytes from {stop} on", f"from {begin} on")
        stop += n_bytes
    if stop != size:
        raise AdapterError(name, f"{_EXPECTED} with {stop} bytes after its header", f"{size}")


def _row(row: Mapping[str, Any], size: int) -> tuple[torch.dtype, tuple[int, ...], int, int]:
    """Return dtype, shape, first byte and bytes of a tensor. Raises ValueError, KeyError, TypeError."""
    dtype, shape = _DTYPES[row["dtype"]], tuple(row["shape"])
    begin, end = row["data_offsets"]
    if any(type(n) is not int or n < 0 for n in (*shape, begin, end)) or end > size:
        raise ValueError
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError
    return dtype, shape, begin, end - begin
