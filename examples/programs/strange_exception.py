"""A storage client that creates its exception classes at run time, as some cloud SDKs do: they cannot be pickled by name."""

from common import loader_class, report


class Client:
    def __init__(self):
        self.NoSuchKey = type("NoSuchKey", (Exception,), {})

    def get(self, index):
        if index == 37:
            raise self.NoSuchKey(f"photos/{index}.jpg")
        return index


class Bucket:
    def __init__(self):
        self.client = None

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if self.client is None:
            self.client = Client()
        return self.client.get(index)


if __name__ == "__main__":
    DataLoader = loader_class()
    try:
        for _ in DataLoader(Bucket(), batch_size=10, num_workers=2):
            pass
    except Exception as error:
        notes = getattr(error, "__notes__", ["no sample named"])
        report(ok=type(error).__name__ == "NoSuchKey", text=f"{type(error).__name__}: {error}; {notes[0]}")
