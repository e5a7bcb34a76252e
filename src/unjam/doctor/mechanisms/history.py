"""History: a sample's content depends on what the same process loaded before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import filled_at
from unjam.doctor.queries.trials import differing, names
from unjam.units import count


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledWhileLoading(Explanation):
    """Samples fill a container that affects later samples, and each worker fills its own copy."""

    loader: str
    wrong: int


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Explain samples that differ between workers by a container that grows during loading."""
    for case in known.cases:
        wrong = differing(case, case.compared)
        containers = case.alone.dataset_changes.grown if case.alone is not None else ()
        grown = [path for path in containers if path.startswith(("dataset.", "collate_fn."))]
        if (
            not wrong
            or not grown
            or case.watched_loader is None
            or case.compared is None
            or any(s.changed for s in case.compared.samples)
        ):
            continue
        path = grown[0]
        files = case.watched_loader.description.files
        place = filled_at(files, path.rpartition(".")[2])
        indices = list(dict.fromkeys(s.index for s in wrong))
        yield FilledWhileLoading(
            culprit=path,
            place=place or case.loader.dataset_place,
            because=(
                f"{count(len(indices), 'sample differs', 'samples differ')} between loading with and without workers: {names(indices)}",
                f"{path} grows while samples are loaded; each of {count(case.loader.num_workers, 'worker')} fills its own copy",
                f"filled at {quoted(place)}" if place is not None else "",
            ),
            case=case,
            loader=case.watched_loader.name,
            wrong=len(indices),
            accounts_for=("differs",),
        )
        return
