"""How often each dimension of programs was used."""

from __future__ import annotations

from collections import Counter, defaultdict

from fuzz.program import Program


class Coverage:
    """Counts, by dimension."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter] = defaultdict(Counter)

    def add(self, program: Program) -> None:
        """Count what a program uses."""
        count = self.counts
        count["loaders"][len(program.loaders)] += 1
        for action in program.actions:
            count["actions"][action.kind] += 1
            count["held batches"][action.hold] += 1
        for plan in program.loaders:
            count["workers"][plan.workers] += 1
            if plan.workers:
                count["start method"][plan.method or "default"] += 1
                count["persistent workers"][plan.persistent] += 1
                count["worker_init_fn"][plan.init or "none"] += 1
            count["dataset"][plan.data.kind] += 1
            count["class defined in"][plan.data.where] += 1
            count["structure"][plan.data.structure] += 1
            count["size"][plan.data.size] += 1
            count["noisy"][plan.data.noisy] += 1
            count["dataset holds"][plan.data.extra or "nothing else"] += 1
            count["batch size"][str(plan.batch_size)] += 1
            count["sampler"][(plan.batch_sampler and f"batch: {plan.batch_sampler}") or plan.sampler or "none"] += 1
            count["collate"][plan.collate or "torch's default"] += 1
            count["in order"][plan.in_order] += 1
            failure = plan.failure
            count["failure in"][failure.place if failure else "nothing"] += 1
            if failure:
                count["failure kind"][failure.kind] += 1
            for leaf in plan.data.leaves:
                count["leaves"][leaf] += 1

    def __str__(self) -> str:
        lines = []
        for name, counter in self.counts.items():
            shown = ", ".join(f"{key} {number}" for key, number in counter.most_common())
            lines.append(f"  {name} ({len(counter)}): {shown}")
        return "\n".join(lines)
