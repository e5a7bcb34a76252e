import struct

import torch
from torch.utils.data import DataLoader, Dataset


def make_decoder(fmt):
    size = struct.calcsize(fmt)

    class DecodeError(ValueError):
        pass

    def decode(blob):
        if len(blob) != size:
            raise DecodeError(f"expected {size} bytes, got {len(blob)}")
        return struct.unpack(fmt, blob)

    return decode


decode_record = make_decoder("<4f")


class Records(Dataset):
    def __init__(self, blobs):
        self.blobs = blobs

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, i):
        return torch.tensor(decode_record(self.blobs[i]))


def load_blobs(n=160):
    blobs = [struct.pack("<4f", i, i + 1, i * 0.5, 1.0) for i in range(n)]
    blobs[90] = blobs[90][:12]
    return blobs


if __name__ == "__main__":
    loader = DataLoader(Records(load_blobs()), batch_size=8, num_workers=2)
    acc = torch.zeros(4)
    for epoch in range(2):
        for batch in loader:
            acc += batch.sum(0)
        print(epoch, acc.tolist())
