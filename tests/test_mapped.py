"""Datasets that stay in their files."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader as TorchLoader

import unjam

ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS)
    np.save(tmp_path / "swapped.npy", ROWS.astype(">f4"))
    np.save(tmp_path / "columns.npy", np.asfortranarray(ROWS))
    np.save(tmp_path / "labels.npy", np.arange(20, dtype=np.int32))
    np.save(tmp_path / "names.npy", np.array([f"n{i}" for i in range(20)]))
    ROWS.tofile(tmp_path / "rows.bin")
    save_file(
        {"x": torch.from_numpy(ROWS.copy()), "y": torch.arange(20).to(torch.bfloat16)}, tmp_path / "rows.safetensors"
    )
    table = pa.table(
        {
            "id": list(range(20)),
            "text": [None if i == 3 else f"t{i}" for i in range(20)],
            "box": [[i, i + 1] for i in range(20)],
        }
    )
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    pa.feather.write_feather(table, str(tmp_path / "rows.feather"), compression="uncompressed")
    unjam.SharedList([f"s{i}" for i in range(20)], path=tmp_path / "list.bin")
    unjam.SharedArray(torch.from_numpy(ROWS.copy()).to(torch.bfloat16), path=tmp_path / "array.dat")
    return tmp_path


@pytest.mark.parametrize("name", ["rows.npy", "swapped.npy", "columns.npy"])
def test_numpy_files_are_mapped(files, name):
    rows = unjam.mapped(files / name)
    assert len(rows) == 20
    assert rows[3].tolist() == rows[-17].tolist() == rows[np.int64(3)].tolist() == [9, 10, 11]
    assert rows[3].dtype == torch.float32
    rows[3][0] = 100  # a copy
    assert rows[3][0] == 9
    with pytest.raises(IndexError, match="row 20 of 20"):
        rows[20]


def test_binary_safetensors_and_arrow_files_are_mapped(files):
    assert unjam.mapped(files / "rows.bin", dtype="float32", shape=(-1, 3))[4].tolist() == [12, 13, 14]
    assert unjam.mapped(files / "rows.bin", dtype=torch.float32)[4] == 4
    row = unjam.mapped(files / "rows.safetensors")[5]
    assert row["x"].tolist() == [15, 16, 17]
    assert row["y"].dtype == torch.bfloat16
    assert float(row["y"]) == 5
    for name in ("rows.arrow", "stream.arrow", "rows.feather"):
        table = unjam.mapped(files / name)
        assert [table[i]["id"] for i in range(20)] == list(range(20))
        assert table[3] == {"id": 3, "text": None, "box": [3, 4]}
    assert unjam.mapped(files / "names.npy")[2] == "n2"
    assert unjam.mapped(files / "list.bin")[2] == "s2"
    assert unjam.mapped(files / "array.dat")[1].tolist() == [3, 4, 5]


@pytest.mark.parametrize("loader", [TorchLoader, unjam.DataLoader])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_mapped_dataset_is_built_in_one_line(files, loader, method):
    dataset = unjam.MappedDataset(files / "rows.npy", files / "labels.npy")
    found = list(loader(dataset, batch_size=5, num_workers=2, multiprocessing_context=method))
    assert torch.equal(torch.cat([x for x, _ in found]), torch.from_numpy(ROWS.copy()))
    assert torch.cat([y for _, y in found]).tolist() == list(range(20))
    assert found[0][1].dtype == torch.int32


def test_names_transforms_and_columns_of_other_kinds(files):
    dataset = unjam.MappedDataset(
        image=files / "rows.npy", name=unjam.SharedList(f"n{i}" for i in range(20)), label=list(range(20)), transform=lambda s: {**s, "more": 1}
    )  # fmt: skip
    sample = dataset[2]
    assert (sample["image"].tolist(), sample["name"], sample["label"], sample["more"]) == ([6, 7, 8], "n2", 2, 1)
    assert unjam.MappedDataset(files / "rows.npy")[0].tolist() == [0, 1, 2]


def test_mapped_files_are_pickled_as_their_path(files):
    rows = unjam.mapped(files / "rows.npy")
    sent = pickle.dumps(rows)
    assert len(sent) < 1000
    assert pickle.loads(sent)[2].tolist() == [6, 7, 8]
    np.save(files / "rows.npy", ROWS[:5])
    with pytest.raises(RuntimeError, match="has changed since it was mapped"):
        pickle.loads(sent)


def test_unmappable_files_are_explained(files):
    def fails(match, name, content=None, **options):
        if content is not None:
            (files / name).write_bytes(content)
        with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
            unjam.mapped(files / name, **options)
        assert name in str(caught.value)

    whole = (files / "rows.npy").read_bytes()
    fails("there is no such file", "missing.npy")
    fails("give their type", "rows.bin")
    fails("do not fit the shape", "rows.bin", dtype="float32", shape=(-1, 7))
    fails("not a multiple of", "odd.bin", b"abc", dtype="float32")
    fails("is not a .npy file", "garbage.npy", b"hello")
    fails("cannot be mapped", "cut.npy", whole[:100])
    fails("is not an Arrow file", "garbage.arrow", b"hello, this is no table")
    fails("not a safetensors file|cannot be mapped", "garbage.safetensors", b"x" * 100)
    fails("convert it once to .npy or .arrow", "x.parquet", b"PAR1")
    fails("torch.load\\(path, mmap=True\\)", "x.pt", b"PK")
    np.save(files / "one.npy", np.float32(3))
    fails("a single number", "one.npy")
    save_file({"x": torch.zeros(3), "y": torch.zeros(4)}, files / "uneven.safetensors")
    fails("the same number of rows", "uneven.safetensors")
    with pytest.raises(ValueError, match="different numbers of rows"):
        unjam.MappedDataset([1, 2], [1, 2, 3])
    with pytest.raises(TypeError, match="takes files"):
        unjam.MappedDataset()
