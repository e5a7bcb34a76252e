import ctypes, os
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class WithMeta(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        meta = {"id": i}
        if i == 9:
            meta["undo"] = lambda x: x.flip(0)
        return torch.rand(3), meta

def keep_lists(samples):
    xs, metas = zip(*samples)
    return torch.stack(xs), list(metas)

if __name__ == "__main__":
    loader = DataLoader(WithMeta(), batch_size=4, num_workers=2, collate_fn=keep_lists)
    for x, metas in loader:
        print(x.shape, [m["id"] for m in metas], flush=True)
