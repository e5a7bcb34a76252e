import ctypes, os, tempfile
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Blobs(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, i):
        return torch.randn(16)

def save(model, path):
    with open(path, "wb") as f:
        torch.save(model.state_dict(), f)

if __name__ == "__main__":
    ckpt = os.path.join(tempfile.mkdtemp(), "ckpt.pt")
    os.mkfifo(ckpt)                      # "streams" to the uploader
    model = torch.nn.Linear(16, 16)
    for step, x in enumerate(DataLoader(Blobs(), batch_size=8, num_workers=3)):
        model(x).sum().backward()
        if step == 50:
            save(model, ckpt)
