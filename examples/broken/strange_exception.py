"""A client whose exception classes are made at run time, and one missing key."""

from torch.utils.data import DataLoader, Dataset


class Client:
    def __init__(self):
        self.errors = {name: type(name, (Exception,), {}) for name in ("NoSuchKey", "Throttled")}

    def get(self, key):
        if key == "photos/37.jpg":
            raise self.errors["NoSuchKey"](key)
        return len(key)


class Photos(Dataset):
    def __init__(self):
        self.client = Client()

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return self.client.get(f"photos/{index}.jpg")


for batch in DataLoader(Photos(), batch_size=10, num_workers=2):
    pass
print("done")
