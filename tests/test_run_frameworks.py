"""`unjam run` under the frameworks people train with: Lightning, transformers, accelerate."""

from __future__ import annotations

import pytest

from test_run import HEAD, summary

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(180)]

LIGHTNING = HEAD + (
    "import warnings; warnings.filterwarnings('ignore')\n"
    "import lightning as L\n"
    "class Numbers(Dataset):\n"
    "    def __len__(self):\n"
    "        return 64\n"
    "    def __getitem__(self, i):\n"
    "        return torch.full((4,), float(i))\n"
    "class Net(L.LightningModule):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.layer, self.seen = torch.nn.Linear(4, 1), 0\n"
    "    def training_step(self, batch):\n"
    "        self.seen += len(batch)\n"
    "        return self.layer(batch).mean()\n"
    "    def validation_step(self, batch):\n"
    "        self.layer(batch)\n"
    "    def configure_optimizers(self):\n"
    "        return torch.optim.SGD(self.parameters(), 1e-6)\n"
    "net = Net()\n"
    "L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator='cpu').fit(\n"
    "    net, DataLoader(Numbers(), batch_size=8, num_workers=1), DataLoader(Numbers(), batch_size=16, num_workers=1))\n"
    "print('seen', net.seen)\n"
)


def test_lightning(tmp_path):
    done, told = summary(tmp_path, LIGHTNING, timeout=150)
    assert "seen 128" in done.stdout, done.stderr
    assert sorted(one["epochs"] for one in told["loaders"]) == [2, 3], (
        "two of training; two of validation and the sanity check"
    )
    assert {one["driver"] for one in told["loaders"]} == {"unjam"}


TRAINER = HEAD + (
    "from transformers import Trainer, TrainingArguments\n"
    "class Rows(Dataset):\n"
    "    def __len__(self):\n"
    "        return 48\n"
    "    def __getitem__(self, i):\n"
    "        if i == 11:\n"
    "            raise OSError('a bad row')\n"
    "        return {'x': torch.full((3,), float(i)), 'labels': torch.tensor(0.0)}\n"
    "class Net(torch.nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.layer = torch.nn.Linear(3, 1)\n"
    "    def forward(self, x, labels):\n"
    "        out = self.layer(x).squeeze(-1)\n"
    "        return {'loss': (out - labels).pow(2).mean() * 1e-9, 'logits': out}\n"
    "args = TrainingArguments('out', per_device_train_batch_size=8, num_train_epochs=1, report_to=[], save_strategy='no',\n"
    "    use_cpu=True, dataloader_num_workers=2, disable_tqdm=True)\n"
    "done = Trainer(Net(), args, train_dataset=Rows()).train()\n"
    "print('steps', done.global_step)\n"
)


def test_transformers(tmp_path):
    done, told = summary(tmp_path, TRAINER, options=["--on-error", "skip"], timeout=150)
    assert "steps 6" in done.stdout, done.stderr
    assert told["loaders"][0]["failed"] == 1
    assert told["loaders"][0]["samples"] == 47


ACCELERATE = HEAD + (
    "from accelerate import Accelerator\n"
    "accelerator = Accelerator(cpu=True)\n"
    "model, loader = torch.nn.Linear(2, 1), DataLoader([torch.ones(2)] * 40, batch_size=8, num_workers=1)\n"
    "model, loader = accelerator.prepare(model, loader)\n"
    "print(type(loader).__name__, sum(len(model(b)) for _ in range(2) for b in loader))\n"
)


def test_accelerate(tmp_path):
    done, told = summary(tmp_path, ACCELERATE, timeout=150)
    assert "80" in done.stdout, done.stderr
    assert sum(one["samples"] for one in told["loaders"]) == 80
    assert {one["driver"] for one in told["loaders"]} == {"unjam"}
