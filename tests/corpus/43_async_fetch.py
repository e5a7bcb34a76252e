import asyncio
import threading

import torch
from torch.utils.data import DataLoader, Dataset


class AsyncClient:
    """Synchronous face of an async client; the loop runs in a thread."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def _get(self, key):
        await asyncio.sleep(0.001)
        return [float(key % k) for k in range(1, 9)]

    def get(self, key):
        return asyncio.run_coroutine_threadsafe(self._get(key), self.loop).result()


class Remote(Dataset):
    def __init__(self, client, keys):
        self.client = client
        self.keys = keys

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        return torch.tensor(self.client.get(self.keys[i]))


def main():
    client = AsyncClient()
    print("probe", client.get(5))
    loader = DataLoader(Remote(client, list(range(1000, 1200))), batch_size=20, num_workers=2)
    model = torch.nn.Linear(8, 2)
    for epoch in range(2):
        for x in loader:
            out = model(x)
        print("epoch", epoch, out.mean().item())


if __name__ == "__main__":
    main()
