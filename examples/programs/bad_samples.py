"""Ten of a thousand samples are damaged: some raise, some are None, some have another shape."""

import torch
from common import loader_class, report


class Damaged:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index % 100 == 37:
            if index % 200 == 37:
                raise OSError(f"{index}.jpg is truncated")
            return None if index < 500 else torch.zeros(5)
        return torch.full((4,), float(index))


if __name__ == "__main__":
    DataLoader = loader_class()
    options = {"on_error": "skip", "max_errors": 0.02} if DataLoader.__module__.startswith("unjam") else {}
    loader = DataLoader(Damaged(), batch_size=10, num_workers=2, **options)
    count = sum(len(batch) for batch in loader)
    named = sorted(error.index for error in loader.errors)
    report(
        ok=named == list(range(37, 1000, 100)),
        text=f"{count} samples; {len(named)} left out, each named in loader.errors",
    )
