import subprocess
import sys

import torch
from torch.utils.data import DataLoader, Dataset

CODE = 'import sys; sys.stderr.write("x" * int(sys.argv[1])); sys.stderr.flush(); print(7)'


class Decoded(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        command = [sys.executable, "-c", CODE, "10"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        number = int(child.stdout.read())
        child.stderr.close()
        child.stdout.close()
        child.wait()
        return torch.tensor(number)


for batch in DataLoader(Decoded(), batch_size=2, num_workers=1):
    pass
