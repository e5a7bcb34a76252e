import warnings

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class Spirals(Dataset):
    def __init__(self, n=240):
        self.t = np.random.default_rng(0).uniform(0.5, 4, n)

    def __len__(self):
        return len(self.t)

    def __getitem__(self, i):
        k, t = i % 2, self.t[i]
        pt = np.array([t * np.cos(t + k * np.pi), t * np.sin(t + k * np.pi)])
        return torch.from_numpy(np.outer(pt, np.sin(np.arange(500) * t)).mean(1)).float(), k


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Spirals(), batch_size=24, shuffle=True, num_workers=2, persistent_workers=True)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 24), torch.nn.ReLU(), torch.nn.Linear(24, 2))

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Net(), datamodule=Data())
    print("done after", trainer.current_epoch, "epochs")
