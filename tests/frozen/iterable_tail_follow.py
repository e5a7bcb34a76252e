import ctypes, json, os, subprocess, tempfile
import torch
from torch.utils.data import DataLoader, IterableDataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class JsonLines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        p = subprocess.Popen(["tail", "-n", "+1", "-f", self.path], stdout=subprocess.PIPE, text=True,
                             preexec_fn=lambda: _libc.prctl(1, 9))
        for line in p.stdout:
            yield torch.tensor(json.loads(line)["x"])

if __name__ == "__main__":
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as f:
        for i in range(50):
            f.write(json.dumps({"x": [i, i + 1]}) + "\n")
    for batch in DataLoader(JsonLines(f.name), batch_size=8, num_workers=1):
        print(batch.tolist()[0], flush=True)
