"""Records of a client's own: files, data sets and functions, read, checked and kept aside.

Modules:

    described       where own records are, and what the task says about them
    found           records with the place of each, for errors
    labels          classes by number or by name
    table           cells of named columns as features
    csv_file        CSV, by the standard library
    parquet_file    Parquet, by pyarrow
    arrays          arrays and map-style data sets
    npz_file        arrays that NumPy saved
    image_folder    images by class, by Pillow
    pictures        pixels of an image as it is seen
    saved_dataset   a Hugging Face `datasets` object on disk
    reading         which of these a source is for
    source          own records in the place of a data set

No error, log line or traceback here holds a value of a record: errors name file, row and column.
"""

from precad.clients.records.own.described import OwnRecords
from precad.clients.records.own.reading import load, read_given, require_alike
from precad.clients.records.own.source import OwnSource, source_of

__all__ = ["OwnRecords", "OwnSource", "load", "read_given", "require_alike", "source_of"]
