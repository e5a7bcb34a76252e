"""Training for a few steps inside Lightning, accelerate, transformers' Trainer and ignite, unchanged."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

import unjam

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),  # the frameworks warn of each other's and of torch's plans
]


class Pairs(Dataset):
    def __init__(self, length=32):
        self.scale = lambda x: x / 10  # torch's loader could not send this without fork
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        x = torch.full((4,), self.scale(float(index)))
        return {"x": x, "labels": x.sum()}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        out = self.layer(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


@pytest.mark.parametrize("persistent", [False, True])
def test_lightning(tmp_path, persistent):
    lightning = pytest.importorskip("lightning.pytorch", reason="pip install unjam[frameworks]")
    used = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            used.append(type(self.trainer.train_dataloader))
            return self.model(**batch)["loss"]

        def validation_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    def loader(**options):
        return unjam.DataLoader(Pairs(), batch_size=4, num_workers=1, persistent_workers=persistent, **options)

    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), loader(shuffle=True), loader())
    assert used == [unjam.DataLoader] * 16


def test_fabric_inserts_a_distributed_sampler():
    """It builds the loader anew from what it was given."""
    lightning = pytest.importorskip("lightning.fabric", reason="pip install unjam[frameworks]")
    from lightning.fabric.utilities.data import _update_dataloader

    loader = unjam.DataLoader(Pairs(), batch_size=4, num_workers=1, worker_threads=3)
    sampler = torch.utils.data.SequentialSampler(range(8))
    again = _update_dataloader(loader, sampler)
    assert type(again) is unjam.DataLoader
    assert (again.worker_threads, again.batch_size, len(list(again))) == (3, 4, 2)
    fabric = lightning.Fabric(accelerator="cpu")
    assert len(list(fabric.setup_dataloaders(loader))) == 8


def test_accelerate():
    accelerate = pytest.importorskip("accelerate", reason="pip install unjam[frameworks]")
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, unjam.DataLoader(Pairs(), batch_size=4, num_workers=1, shuffle=True)
    )
    steps = 0
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        steps += 1
    assert steps == 8


def test_transformers_trainer(tmp_path):
    transformers = pytest.importorskip("transformers", reason="pip install unjam[frameworks]")

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return unjam.DataLoader(self.train_dataset, batch_size=4, num_workers=1, shuffle=True)

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    result = Trainer(Model(), arguments, train_dataset=Pairs()).train()
    assert result.global_step == 6


def test_ignite_rebuilds_the_loader():
    ignite = pytest.importorskip("ignite.engine", reason="pip install unjam[frameworks]")
    from ignite import distributed as idist

    seen = []
    loader = idist.auto_dataloader(Pairs(), batch_size=4, num_workers=1)
    engine = ignite.Engine(lambda engine, batch: seen.append(len(batch["x"])))
    engine.run(unjam.DataLoader(Pairs(), batch_size=4, num_workers=1), max_epochs=2)
    assert seen == [4] * 16
    del loader
    deterministic = pytest.importorskip("ignite.engine.deterministic")
    engine = deterministic.DeterministicEngine(lambda engine, batch: seen.append(0))
    engine.run(unjam.DataLoader(Pairs(), batch_size=4, num_workers=1), max_epochs=1)
    assert seen.count(0) == 8
