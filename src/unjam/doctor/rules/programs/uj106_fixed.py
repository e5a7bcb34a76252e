# notebook
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return i * i


for batch in DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
    print(batch)
