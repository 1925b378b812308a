"""Data sets, bundled and from a folder, and how they are spread over clients."""

import gzip
import hashlib
import os
import struct
import types
import zipfile
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import BernoulliNB

from precad.clients import extras
from precad.clients import records as datasets
from precad.clients.attacks import RandomLabels
from precad.clients.config import DatasetName
from precad.clients.errors import ArgumentError, CorruptDataError, DataError, MissingDataError, UnknownNameError
from precad.clients.records import DataSource, Records, idx, mosaics, partitions, tweets


@pytest.fixture(scope="module")
def split():
    return datasets.digits()


def rows(records):
    """The records as a sorted list, to compare as multisets."""
    return sorted((image.tobytes(), int(label)) for image, label in zip(records.features, records.labels, strict=True))


def numbered(n):
    """n records that can be told apart."""
    return Records(np.arange(n, dtype=np.float32).reshape(n, 1, 1, 1), np.arange(n) % 10)


def test_digits_are_all_of_scikit_learn_s_split_1437_to_360(split):
    """Train and test together are every bundled image once, pixels / 16."""
    pixels, labels = load_digits(return_X_y=True)
    everything = Records((pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels)
    assert (len(split.train), len(split.test)) == (1437, 360)
    assert sorted(rows(split.train) + rows(split.test)) == rows(everything)


def test_digits_have_the_dtypes_and_the_range_that_models_expect(split):
    for records in (split.train, split.test):
        assert records.features.dtype == np.float32
        assert records.labels.dtype == np.int64
        assert (records.features.min(), records.features.max()) == (0.0, 1.0)


def test_the_split_is_stratified_and_always_the_same(split):
    """Each class has within one record its share of the test set."""
    share = np.bincount(split.train.labels) + np.bincount(split.test.labels)
    assert np.all(np.abs(np.bincount(split.test.labels) - share * 360 / 1797) < 1)
    assert_array_equal(datasets.digits().test.labels, split.test.labels)


def test_the_split_is_scikit_learn_s_own(split):
    """The committed rows are what `train_test_split` gives with seed 0, in its order."""
    pixels, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
    for records, chosen in ((split.train, train), (split.test, test)):
        assert_array_equal(records.features.reshape(-1, 64), (pixels[chosen] / 16).astype(np.float32))
        assert_array_equal(records.labels, labels[chosen])


def test_enlarged_digits_keep_range_mean_and_labels(split):
    """28x28 images for the CNN. A bilinear enlargement moves the mean of an image by little: its borders count less."""
    large = datasets.digits(side=28)
    assert large.train.features.shape == (1437, 1, 28, 28)
    assert large.train.features.dtype == np.float32
    assert large.train.features.min() >= 0.0
    assert large.train.features.max() <= 1.0
    assert_array_equal(large.test.labels, split.test.labels)
    moved = large.test.features.mean(axis=(1, 2, 3)) - split.test.features.mean(axis=(1, 2, 3))
    assert np.abs(moved).max() < 0.02


def test_digits_are_not_made_smaller():
    with pytest.raises(ArgumentError, match="side: expected at least 8, found 7"):
        datasets.digits(side=7)


@settings(max_examples=50)
@given(n=st.integers(1, 60), data=st.data(), seed=st.integers(0, 2**32))
def test_iid_deals_every_record_once_in_equal_parts(n, data, seed):
    n_clients = data.draw(st.integers(1, n))
    parts = partitions.iid(n, n_clients, seed=seed)
    sizes = [len(part) for part in parts]
    assert len(parts) == n_clients
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(parts)) == list(range(n))


def test_iid_depends_on_the_seed_alone():
    first, again, other = (np.concatenate(partitions.iid(100, 8, seed=seed)).tolist() for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("n_clients", [-1, 0, 6])
def test_iid_refuses_clients_without_records(n_clients):
    with pytest.raises(ArgumentError, match=rf"n_clients: expected 1 to 5, found {n_clients}"):
        partitions.iid(5, n_clients, seed=0)


def test_take_copies():
    records = numbered(4)
    taken = records.take(np.array([2, 0]))
    taken.features[:] = -1.0
    assert_array_equal(taken.labels, [2, 0])
    assert records.features.min() == 0.0


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (
            np.zeros(2, np.float32),
            np.zeros(2, np.int64),
            "features, labels: expected shapes \\(n, ..\\), of float32, uint8 or int64",
        ),
        (
            np.zeros((2, 3), np.int32),
            np.zeros(2, np.int64),
            "features, labels: expected shapes \\(n, ..\\), of float32, uint8 or int64",
        ),
        (
            np.zeros((2, 1, 8, 8), np.float32),
            np.zeros(3, np.int64),
            "features, labels: expected shapes \\(n, ..\\), of float32, uint8 or int64",
        ),
        (np.zeros((2, 3), np.float32), np.array([4, -1]), r"labels: expected a label in \[0, 2147483647\] in row 1, f"),
        (np.zeros((2, 3), np.float32), np.array([4, -100]), r"labels: expected a label in .* in row 1, found"),
        (np.zeros((2, 3), np.float32), np.array([[4, -100], [-1, 0]]), r"labels: expected a label in .* in row 1, f"),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.float64), "labels: expected int64 classes or float32 numbers"),
    ],
)
def test_malformed_records_are_refused(features, labels, message):
    with pytest.raises(ArgumentError, match=message):
        Records(features, labels)


def test_records_do_not_print_pixels():
    assert repr(numbered(3)) == "Records(n=3, features=(1, 1, 1))"


# Partitions


def everything(parts):
    return sorted(np.concatenate(parts).tolist())


@settings(max_examples=50)
@given(n_clients=st.integers(1, 12), per_client=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_shards_are_dealt_once_and_each_comes_from_the_sorted_labels(n_clients, per_client, seed):
    labels = np.random.default_rng(seed).integers(0, 10, size=200)
    parts = partitions.shards(labels, n_clients, per_client=per_client, seed=seed)
    assert everything(parts) == list(range(200))
    assert max(map(len, parts)) - min(map(len, parts)) <= per_client
    assert all(len(part) > 0 for part in parts)


def test_400_shards_show_a_client_few_classes():
    """100 clients, 4 shards of 150 records each: at most 8 of 10 classes (a shard spans two at most), mostly 4."""
    labels = np.repeat(np.arange(10), 6000)
    parts = partitions.shards(labels, 100, per_client=4, seed=0)
    classes = [len(np.unique(labels[part])) for part in parts]
    assert {len(part) for part in parts} == {600}
    assert max(classes) <= 4
    assert np.mean(classes) < 3.7


@settings(max_examples=50)
@given(n_clients=st.integers(1, 50), alpha=st.sampled_from([0.01, 0.5, 100.0]), seed=st.integers(0, 2**32))
def test_dirichlet_deals_everything_once_and_leaves_nobody_empty(n_clients, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, 4, size=50)
    parts = partitions.dirichlet(labels, n_clients, alpha=alpha, seed=seed)
    assert everything(parts) == list(range(50))
    assert all(len(part) > 0 for part in parts)


def test_dirichlet_alpha_decides_how_mixed_clients_are():
    """Large alpha: every client close to a tenth of each class. Small alpha: few classes hold most of a client."""
    labels = np.repeat(np.arange(10), 1000)
    mixed, pure = (partitions.dirichlet(labels, 10, alpha=alpha, seed=1) for alpha in (1e4, 0.05))
    assert all(np.all(np.abs(np.bincount(labels[part], minlength=10) - 100) < 20) for part in mixed)
    top_two = [np.sort(np.bincount(labels[part], minlength=10))[-2:].sum() / len(part) for part in pure]
    assert np.mean(top_two) > 0.7


def test_by_user_keeps_users_whole():
    users = np.array([7, 7, 3, 5, 3, 9, 7])
    parts = partitions.by_user(users, 3, seed=0)
    assert everything(parts) == list(range(7))
    assert sum(len(np.unique(users[part])) for part in parts) == 4
    assert [len(np.unique(users[part])) for part in partitions.by_user(users, 4, seed=0)] == [1] * 4
    groups = np.array_split(np.random.default_rng(0).permutation([3, 5, 7, 9]), 3)
    for part, group in zip(parts, groups, strict=True):
        assert_array_equal(part, [i for i, user in enumerate(users) if user in group])


@pytest.mark.parametrize(
    ("deal", "message"),
    [
        (lambda: partitions.shards(np.zeros(7, int), 2, per_client=4, seed=0), r"shards: expected 1 to 7, found 8"),
        (
            lambda: partitions.shards(np.zeros(7, int), 2, per_client=0, seed=0),
            "shards per client: expected at least 1",
        ),
        (
            lambda: partitions.dirichlet(np.zeros(7, int), 2, alpha=0.0, seed=0),
            "alpha: expected a finite number above 0",
        ),
        (lambda: partitions.dirichlet(np.zeros(7, int), 8, alpha=1.0, seed=0), "n_clients: expected 1 to 7"),
        (lambda: partitions.by_user(None, 2, seed=0), "needs a data set that knows its users"),
        (lambda: partitions.by_user(np.zeros(7, int), 2, seed=0), r"clients of users: expected 1 to 1, found 2"),
    ],
)
def test_impossible_deals_are_refused(deal, message):
    with pytest.raises(ArgumentError, match=message):
        deal()


def test_a_source_deals_in_the_order_of_ids(split):
    """Whatever the order in which a configuration lists them; every process finds the same records."""
    source = DataSource(partition="shards", seed=3)
    clients = ["carol", "alice", "bob"]
    sizes, mine = source.sizes(split, clients), source.records_of(split, list(reversed(clients)), ["bob"])
    part = partitions.shards(split.train.labels, 3, per_client=4, seed=3)[1]
    assert sizes["bob"] == len(part)
    assert_array_equal(mine["bob"].labels, split.train.labels[part])


def test_a_source_keeps_the_records_of_some_classes(split):
    """In both halves and in order; labels stay."""
    found = DataSource(classes=(1, 7)).load()
    for half, whole in ((found.train, split.train), (found.test, split.test)):
        wanted = [i for i, label in enumerate(whole.labels) if label in (1, 7)]
        assert_array_equal(half.features, whole.features[wanted])
        assert_array_equal(half.labels, whole.labels[wanted])
    users = datasets.Split(split.train, split.test, np.arange(len(split.train))).of_classes((1, 7)).users
    assert_array_equal(split.train.labels[users], found.train.labels)


@pytest.mark.parametrize("classes", [(3,), (3, 3), (3, 10)])
def test_classes_that_a_data_set_lacks_are_refused(classes):
    with pytest.raises(DataError, match=r"classes: expected at least two of \[0, 1, .* found \[3"):
        DataSource(classes=classes).load()


def test_names_that_no_source_has_are_refused(split):
    with pytest.raises(UnknownNameError, match="unknown data set 'emnist'"):
        DataSource(dataset="emnist").load()
    with pytest.raises(UnknownNameError, match="unknown partition 'random'"):
        DataSource(partition="random").parts(split, 2)


# Files


def idx_bytes(array):
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
    """Five and two images in MNIST's format, with checksums to match."""
    random = np.random.default_rng(0)
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    arrays, sums = {}, {}
    for half, n in (("train", 5), ("t10k", 2)):
        arrays[f"{half}-images-idx3-ubyte"] = random.integers(0, 256, size=(n, 28, 28), dtype=np.uint8)
        arrays[f"{half}-labels-idx1-ubyte"] = random.integers(0, 10, size=n, dtype=np.uint8)
    for name, array in arrays.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
        sums[f"MNIST/raw/{name}"] = hashlib.sha256(idx_bytes(array)).hexdigest()
    monkeypatch.setattr(idx, "SHA256", sums)
    monkeypatch.setenv("PRECAD_DATA", str(tmp_path))
    return folder, arrays


def test_idx_files_are_read_plain_or_compressed(tiny_mnist):
    folder, arrays = tiny_mnist
    labels = folder / "train-labels-idx1-ubyte"
    labels.write_bytes(gzip.decompress((folder / f"{labels.name}.gz").read_bytes()))
    (folder / f"{labels.name}.gz").unlink()
    split = datasets.mnist()
    assert_array_equal(split.train.features[:, 0], arrays["train-images-idx3-ubyte"])
    assert_array_equal(split.test.labels, arrays["t10k-labels-idx1-ubyte"])
    assert split.train.features.dtype == np.uint8


def test_a_damaged_file_is_named_with_its_remedy(tiny_mnist):
    folder, _ = tiny_mnist
    path = folder / "train-images-idx3-ubyte.gz"
    data = bytearray(gzip.decompress(path.read_bytes()))
    data[100] ^= 1
    path.write_bytes(gzip.compress(bytes(data)))
    with pytest.raises(CorruptDataError, match=r"train-images-idx3-ubyte.gz: expected content .* get it again"):
        datasets.mnist()
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CorruptDataError, match="it cannot be read"):
        datasets.mnist()


@pytest.mark.parametrize(
    "data", [b"", b"\x00\x00\x09\x01\x00\x00\x00\x01a", b"\x00\x00\x08\x03\x00", idx_bytes(np.zeros(3, np.uint8))[:-1]]
)
def test_what_is_no_idx_file_is_refused(data):
    with pytest.raises(CorruptDataError):
        idx.parse_idx(Path("x"), data)


def test_missing_files_say_what_helps(tmp_path, monkeypatch):
    monkeypatch.delenv("PRECAD_DATA", raising=False)
    for load in (
        datasets.mnist,
        datasets.fashion_mnist,
        datasets.cifar10,
        datasets.airline_tweets,
        datasets.sentiment140,
    ):
        with pytest.raises(MissingDataError, match="set PRECAD_DATA to a folder that holds"):
            load()
    monkeypatch.setenv("PRECAD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(MissingDataError, match="PRECAD_DATA: expected a folder, found"):
        datasets.mnist()


def test_downloads_need_torchvision_and_permission(tiny_mnist, monkeypatch, tmp_path):
    """A stand-in for torchvision writes the files where the real one does."""
    folder, arrays = tiny_mnist
    files = {path.name: gzip.decompress(path.read_bytes()) for path in folder.iterdir()}
    monkeypatch.delenv("PRECAD_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(extras.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(MissingDataError, match=r'torchvision.* install "precad\[datasets\]" from where'):
        datasets.mnist(may_download=True)

    def fetch(root, *, train, download):
        assert train
        assert download
        raw = Path(root) / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for name, data in files.items():
            (raw / name.removesuffix(".gz")).write_bytes(data)

    monkeypatch.setattr(extras.importlib, "import_module", lambda name: types.SimpleNamespace(MNIST=fetch))
    assert_array_equal(datasets.mnist(may_download=True).train.features[:, 0], arrays["train-images-idx3-ubyte"])

    def broken(root, *, train, download):
        raise RuntimeError("no network")

    monkeypatch.setattr(extras.importlib, "import_module", lambda name: types.SimpleNamespace(CIFAR10=broken))
    with pytest.raises(MissingDataError, match=r"could not be downloaded to .*: no network"):
        datasets.cifar10(may_download=True)


def test_mosaics_are_cut_into_their_tiles(tmp_path, monkeypatch):
    """200 tiles per file whose pixels tell which they are, written as PNG by Pillow."""
    image = pytest.importorskip("PIL.Image")
    sums = {}
    (tmp_path / "cifar10").mkdir()
    for half in ("train", "test"):
        for label, name in enumerate(mosaics.CLASSES):
            tiles = np.zeros((200, 32, 32, 3), dtype=np.uint8)
            tiles[:] = np.arange(200, dtype=np.uint8)[:, None, None, None]
            tiles[..., 1] = label
            tiles[:, 5, 7, 2] = 99
            mosaic = tiles.reshape(2, 100, 32, 32, 3).swapaxes(1, 2).reshape(64, 3200, 3)
            path = tmp_path / "cifar10" / f"{half}_{label}_{name}.png"
            image.fromarray(mosaic).save(path)
            sums[f"cifar10/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(mosaics, "SHA256", sums)
    monkeypatch.setenv("PRECAD_DATA", str(tmp_path))
    train = datasets.cifar10().train
    assert train.features.shape == (2000, 3, 32, 32)
    assert_array_equal(train.features[:, 1, 0, 0], train.labels)
    assert np.all(train.features[:, 2, 5, 7] == 99)
    found = sorted(zip(train.labels.tolist(), train.features[:, 0, 31, 31].tolist(), strict=True))
    assert found == sorted((label, tile) for label in range(10) for tile in range(200))
    assert len(np.unique(train.labels[:50])) > 3


def test_words_become_tokens():
    """Lower case; padded; the hash is CRC-32, whose check value is known."""
    assert tweets.tokens("") == [0] * 32
    assert tweets.tokens("123456789")[:2] == [1 + 0xCBF43926 % 1999, 0]
    assert tweets.tokens("Thanks, @united!") == tweets.tokens("thanks @UNITED")
    assert len(tweets.tokens("word " * 100)) == 32
    assert all(0 <= token < tweets.VOCABULARY for token in tweets.tokens("a b c d e f"))


# EMNIST


def column_by_column(image):
    """28 x 28 bytes as EMNIST's files have them: all of the first column, then the second."""
    return bytes(int(image[row][column]) for column in range(28) for row in range(28))


@pytest.fixture
def tiny_emnist(tmp_path, monkeypatch):
    """Three classes, labelled from 1, as `letters` is; six images to train on and three to test, all different."""
    images = np.random.default_rng(0).integers(0, 256, size=(9, 28, 28), dtype=np.uint8)
    labels = [3, 1, 2, 2, 1, 3, 1, 2, 3]
    files = {}
    for half, chosen in (("train", range(6)), ("test", range(6, 9))):
        header = b"\x00\x00\x08\x03" + struct.pack(">III", len(chosen), 28, 28)
        name = f"emnist-letters-{half}"
        files[f"{name}-images-idx3-ubyte"] = header + b"".join(column_by_column(images[i]) for i in chosen)
        files[f"{name}-labels-idx1-ubyte"] = idx_bytes(np.array([labels[i] for i in chosen], np.uint8))
    monkeypatch.setattr(idx, "EMNIST_SPLITS", {"letters": idx.EmnistSplit(3, 6, 3, first_label=1)})
    monkeypatch.setenv("PRECAD_DATA", str(tmp_path))
    (tmp_path / "EMNIST" / "raw").mkdir(parents=True)
    return files, images, np.array(labels) - 1


def write_emnist(folder, files, *, as_archive):
    """Write what a user has: the authors' archive, or the files in it, with one of them unpacked. Return the archive's
    SHA-256, or None for files.
    """
    raw = folder / "EMNIST" / "raw"
    if not as_archive:
        for i, (name, data) in enumerate(files.items()):
            (raw / (f"{name}.gz" if i else name)).write_bytes(gzip.compress(data) if i else data)
        return None
    with zipfile.ZipFile(raw / "gzip.zip", "w") as packed:
        for name, data in files.items():
            packed.writestr(f"gzip/{name}.gz", gzip.compress(data))
    return hashlib.sha256((raw / "gzip.zip").read_bytes()).hexdigest()


@pytest.mark.parametrize("as_archive", [True, False])
def test_emnist_s_images_are_turned_upright_and_classes_count_from_zero(tiny_emnist, tmp_path, monkeypatch, as_archive):
    files, images, labels = tiny_emnist
    with pytest.raises(MissingDataError, match=r"PRECAD_DATA to a folder that holds EMNIST/raw/gzip.zip, or"):
        datasets.emnist("letters")
    monkeypatch.setattr(idx, "EMNIST_SHA256", write_emnist(tmp_path, files, as_archive=as_archive))
    split = DataSource(dataset="emnist-letters").load()
    assert_array_equal(split.train.features[:, 0], images[:6])
    assert_array_equal(split.test.features[:, 0], images[6:])
    assert_array_equal(np.concatenate([split.train.labels, split.test.labels]), labels)


def test_emnist_s_damaged_files_are_named(tiny_emnist, tmp_path, monkeypatch):
    """The archive by its checksum; single files, whose checksums nobody published, by what should be in them."""
    files, _, _ = tiny_emnist
    write_emnist(tmp_path, files, as_archive=True)
    with pytest.raises(CorruptDataError, match=r"gzip.zip: expected content with SHA-256 fb9bb67e33772a9c"):
        datasets.emnist("letters")
    (tmp_path / "EMNIST" / "raw" / "gzip.zip").unlink()
    name = "emnist-letters-test-labels-idx1-ubyte"
    write_emnist(tmp_path, {**files, name: idx_bytes(np.array([1, 2, 4], np.uint8))}, as_archive=False)
    with pytest.raises(CorruptDataError, match=rf"{name}.gz: expected 3 labels of 1 to 3, found .* \[1, 2, 4\]"):
        datasets.emnist("letters")
    name = "emnist-letters-train-images-idx3-ubyte"
    write_emnist(tmp_path, {**files, name: idx_bytes(np.zeros((5, 28, 28), np.uint8))}, as_archive=False)
    with pytest.raises(CorruptDataError, match=rf"{name}: expected images of shape \(6, 28, 28\), found \(5, "):
        datasets.emnist("letters")


def test_emnist_is_downloaded_where_that_is_allowed(tiny_emnist, tmp_path, monkeypatch):
    """A stand-in for torchvision leaves archive and unpacked files behind, as the real one does."""
    files, images, _ = tiny_emnist

    def fetch(root, *, train, download, split):
        assert (train, download, split) == (True, True, "letters")
        monkeypatch.setattr(idx, "EMNIST_SHA256", write_emnist(Path(root), files, as_archive=True))
        for name, data in files.items():
            (Path(root) / "EMNIST" / "raw" / name).write_bytes(data)

    monkeypatch.setattr(extras.importlib, "import_module", lambda name: types.SimpleNamespace(EMNIST=fetch))
    assert_array_equal(datasets.emnist("letters", may_download=True).train.features[:, 0], images[:6])


def test_emnist_s_splits_have_the_published_sizes():
    """280 000, 145 600, 131 600 and 814 255 characters (nist.gov, The EMNIST Dataset); a name for each."""
    sizes = {name: split.n_train + split.n_test for name, split in idx.EMNIST_SPLITS.items()}
    assert sizes == {"digits": 280_000, "letters": 145_600, "balanced": 131_600, "byclass": 814_255}
    assert {f"emnist-{name}" for name in sizes} == {name for name in get_args(DatasetName) if name.startswith("emnist")}


def test_classes_beyond_a_data_set_s_are_refused():
    eleven = Records(np.zeros((11, 1, 8, 8), np.float32), np.arange(11))
    with pytest.raises(ArgumentError, match=r"expected a label in \[0, 9\] in row \d+, found one outside"):
        datasets.Split(eleven, eleven)
    split = datasets.Split(eleven, eleven, n_logits=26)
    assert split.of_classes((9, 10)).n_logits == 26
    with pytest.raises(ArgumentError, match=r"expected a label in \[0, 9\] in row \d+, found one outside"):
        RandomLabels().on_records(eleven)


def stanford_row(label, user, text):
    """As the authors' file has it: every field quoted, quotes doubled."""
    quoted = (str(field).replace('"', '""') for field in (label, 1467810369, "Mon Apr 06", "NO_QUERY", user, text))
    return ",".join(f'"{field}"' for field in quoted) + "\n"


@pytest.fixture
def stanford(tmp_path, monkeypatch):
    """Puts an archive of these rows where the folder has it, with a checksum to match; gives its path."""
    archive = tmp_path / "tweets" / "trainingandtestdata.zip"
    archive.parent.mkdir()
    monkeypatch.setenv("PRECAD_DATA", str(tmp_path))

    def write(*rows, member=tweets.MEMBER):
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr(member, "".join(rows).encode("latin-1"))
        monkeypatch.setattr(tweets, "ARCHIVE_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
        return archive

    return write


def test_sentiment140_keeps_its_users_apart(stanford):
    """Thirty tweets of ten users, positive by the even ones: two users are kept aside with all they wrote."""
    texts = ['caf\xe9, "really" &amp; truly', "@someone see http://a.b/c?d=e or me@mail.example.org", "so sad"]
    stanford(*(stanford_row(4 if user % 2 == 0 else 0, f"u{user}", text) for text in texts for user in range(10)))
    split = datasets.sentiment140()
    assert (len(split.train), len(split.test), len(np.unique(split.users))) == (24, 6, 8)
    assert_array_equal(split.train.labels, split.users % 2 == 0)
    expected = ['caf\xe9, "really" & truly', "@user see http or email", "so sad"]
    assert_array_equal(np.unique(split.train.features, axis=0), np.unique([*map(tweets.tokens, expected)], axis=0))
    assert all(np.sum(split.users == user) == 3 for user in np.unique(split.users))
    parts = DataSource(dataset="sentiment140", partition="user").parts(split, 8)
    assert all(len(np.unique(split.users[part])) == 1 for part in parts)


def test_a_damaged_archive_is_named_with_its_remedy(stanford):
    good = stanford_row(0, "a", "text")
    archive = stanford(good)
    archive.write_bytes(archive.read_bytes() + b" ")
    with pytest.raises(CorruptDataError, match=r"trainingandtestdata.zip: expected content .* get it again"):
        datasets.sentiment140()
    stanford(good, member="other.csv")
    with pytest.raises(CorruptDataError, match=r"cannot be read .*training\.1600000"):
        datasets.sentiment140()
    for bad in (stanford_row(2, "a", "neither"), '"0","1"\n'):
        stanford(good, bad)
        with pytest.raises(CorruptDataError, match="expected 6 fields that begin with 0 or 4 in row 2"):
            datasets.sentiment140()


def test_the_subset_has_no_users(tmp_path, monkeypatch):
    """Twenty tweets: four are kept aside, each tweet is in one half, and there is nobody to deal by."""
    text = "label,text\r\n" + "".join(f'{i % 2},"tweet, {i}"\r\n' for i in range(20))
    path = tmp_path / "tweets" / "sentiment140_50k.csv.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(tweets, "SUBSET_SHA256", hashlib.sha256(text.encode()).hexdigest())
    monkeypatch.setenv("PRECAD_DATA", str(tmp_path))
    split = datasets.sentiment140_50k()
    assert (len(split.train), len(split.test)) == (16, 4)
    number_of = {tuple(tweets.tokens(f"tweet, {i}")): i for i in range(20)}
    found = [(number_of[tuple(row)], label) for half in (split.train, split.test) for row, label in labelled(half)]
    assert sorted(found) == [(i, i % 2) for i in range(20)]
    with pytest.raises(ArgumentError, match="needs a data set that knows its users"):
        DataSource(dataset="sentiment140-50k", partition="user").parts(split, 4)


def labelled(records):
    return zip(records.features.tolist(), records.labels.tolist(), strict=True)


# The real files, where they are

REAL = os.environ.get("PRECAD_DATA", "")
needs_data = pytest.mark.skipif(not REAL, reason="PRECAD_DATA is not set")


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "folder", "md5s"),
    [
        (
            datasets.mnist,
            "MNIST",
            (
                "6bbc9ace898e44ae57da46a324031adb",
                "a25bea736e30d166cdddb491f175f624",
                "2646ac647ad5339dbf082846283269ea",
                "27ae3e4e09519cfbb04c329615203637",
            ),
        ),
        (
            datasets.fashion_mnist,
            "FashionMNIST",
            (
                "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                "9018921c3c673c538a1fc5bad174d6f9",
                "8181f5470baa50b63fa0f6fddb340f0a",
                "15d484375f8d13e6eb1aabb0c3f46965",
            ),
        ),
    ],
)
def test_idx_files_have_the_published_md5(load, folder, md5s):
    """An independent checksum of what our SHA-256 accepts, as torchvision has it; 6000 or so of each class."""
    names = [f"{half}-{kind}" for half in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    for name, md5 in zip(names, md5s, strict=True):
        path = Path(REAL) / folder / "raw" / f"{name}.gz"
        assert hashlib.md5(gzip.decompress(path.read_bytes())).hexdigest() == md5
    split = load()
    assert (split.train.features.shape, split.test.features.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert np.bincount(split.train.labels).min() > 5000


@needs_data
@pytest.mark.slow
def test_cifar10_has_the_published_statistics():
    """Mean and standard deviation per channel, as published everywhere; 5000 and 1000 of each class."""
    split = datasets.cifar10()
    pixels = split.train.features / 255
    np.testing.assert_allclose(pixels.mean(axis=(0, 2, 3)), [0.49139968, 0.48215841, 0.44653091], atol=1e-6)
    np.testing.assert_allclose(pixels.std(axis=(0, 2, 3)), [0.24703223, 0.24348513, 0.26158784], atol=1e-6)
    assert set(np.bincount(split.train.labels)) == {5000}
    assert set(np.bincount(split.test.labels)) == {1000}


@needs_data
@pytest.mark.slow
def test_tweets_keep_users_apart():
    """7701 users, a fifth kept aside; every client of a partition by user holds whole users."""
    split = datasets.airline_tweets()
    assert len(split.train) + len(split.test) == 14_485
    assert len(np.unique(split.users)) == 7701 - round(0.2 * 7701)
    parts = partitions.by_user(split.users, 100, seed=0)
    assert everything(parts) == list(range(len(split.train)))


@needs_data
@pytest.mark.slow
def test_the_subset_of_sentiment140_is_balanced():
    """Count 25 000 records of each class, with a fifth aside.

    The words tell the classes apart: naive Bayes is right for some 76 %, as is usual for this set (docs of the data).
    Every 10 000 have a standard error of half a point.
    """
    split = datasets.sentiment140_50k()
    assert (len(split.train), len(split.test)) == (40_000, 10_000)
    assert_array_equal(np.bincount(split.train.labels) + np.bincount(split.test.labels), [25_000, 25_000])
    assert split.users is None

    def words(records):
        found = np.zeros((len(records), tweets.VOCABULARY))
        found[np.arange(len(records))[:, None], records.features] = 1.0
        return found[:, 1:]

    guessed = BernoulliNB().fit(words(split.train), split.train.labels).predict(words(split.test))
    assert 0.70 < np.mean(guessed == split.test.labels) < 0.80


def test_an_idx_file_whose_lengths_wrap_is_refused():
    """2^22 * 2^21 * 2^21 values are 2^64, which is zero in 64 bits."""
    lengths = b"".join((2**bits).to_bytes(4, "big") for bits in (22, 21, 21))
    with pytest.raises(CorruptDataError, match="found 0"):
        idx.parse_idx(Path("x"), b"\x00\x00\x08\x03" + lengths)


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) >= len(sizes)))
def test_who_drew_nothing_gets_a_record_of_whoever_has_most(sizes):
    """Against the search through all clients for each of them."""
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    slow = list(parts)
    for i, part in enumerate(slow):
        if len(part) == 0:
            richest = max(range(len(slow)), key=lambda j: len(slow[j]))
            slow[i], slow[richest] = slow[richest][-1:], slow[richest][:-1]
    partitions._give_to_the_poor(parts)
    for found, expected in zip(parts, slow, strict=True):
        assert_array_equal(found, expected)
