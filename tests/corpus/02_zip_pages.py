import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

root = Path(tempfile.mkdtemp(prefix="pages_"))
with zipfile.ZipFile(root / "pages.zip", "w") as z:
    for n in range(120):
        buf = io.BytesIO()
        np.save(buf, np.full((64, 64), n, dtype=np.float32))
        z.writestr(f"{n:04d}.npy", buf.getvalue())


class Pages(Dataset):
    def __init__(self, archive):
        self.archive = archive
        self._zip = None
        with zipfile.ZipFile(archive) as z:
            self.names = sorted(z.namelist())

    @property
    def zip(self):
        # opened on first use, so every process has its own
        if self._zip is None:
            self._zip = zipfile.ZipFile(self.archive)
        return self._zip

    def __len__(self):
        return len(self.names)

    def __getitem__(self, idx):
        data = np.load(io.BytesIO(self.zip.read(self.names[idx])))
        return torch.from_numpy(data), idx


loader = DataLoader(Pages(root / "pages.zip"), batch_size=8, num_workers=2, shuffle=True)
for epoch in range(2):
    total = 0.0
    for page, idx in loader:
        assert torch.equal(page[:, 0, 0].long(), idx)
        total += page.mean().item()
    print("epoch", epoch, total)
