"""The `unjam` command. Exit code 0: nothing found, 1: something found, 2: the tool could not do its work."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

try:
    import typer
    from typer.core import TyperCommand

    from unjam.doctor.report.terminal import console, escape, progress
except ImportError as missing:
    raise SystemExit(f"the command needs {missing.name}: pip install {missing.name}") from missing

from unjam import __version__
from unjam.system.masking import masked
from unjam.system.printable import printable, printable_line
from unjam.system.private_files import write_report

if TYPE_CHECKING:
    from unjam.doctor.report.diagnosis import Diagnosis
    from unjam.doctor.why.families import Family

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="A DataLoader that cannot freeze silently.",
)

_Target = Annotated[
    str, typer.Argument(help="A script, a notebook, or package.module:thing (a DataLoader, a Dataset, a function).")
]
_Arguments = Annotated[list[str] | None, typer.Argument(help="Arguments of the script; after -- whatever they are.")]
_Module = Annotated[bool, typer.Option("--module", help="The target is a module, as in python -m.")]


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback
    if wanted:
        typer.echo(f"unjam {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,  # noqa: FBT002
) -> None:
    """A DataLoader that cannot freeze silently."""


@app.command()
def errors(
    log: Annotated[Path, typer.Argument(help="The file given as error_log=.")],
    by: Annotated[str, typer.Option(help="One table only: cause, sample or worker.")] = "",
    json: Annotated[
        Path | None, typer.Option(help="Write the groups as JSON to this file; - for the terminal.")
    ] = None,
) -> None:
    """Group the failures in an error log: by cause, by sample, by worker."""
    from unjam.loader import error_log as report  # noqa: PLC0415 - a command imports what it needs

    if by and by not in report.KINDS:
        _stop(f"--by takes cause, sample or worker, not {by!r}")
    try:
        found = report.read(str(log))
    except OSError as error:
        _stop(f"{log} cannot be read: {error.strerror}")
    if found.strange and not found.incidents:
        _stop(f"{log} is no error log: none of its {found.strange} lines is an incident")
    if json is not None:
        _write(json, report.dumps(found))
    if json is None or str(json) != "-":
        report.show(found, [by] if by else report.KINDS, console())
    raise typer.Exit(1 if found.incidents else 0)


@app.command(context_settings={"ignore_unknown_options": True})
def check(
    target: _Target,
    arguments: _Arguments = None,
    module: _Module = False,  # noqa: FBT002 - typer's way
    budget: Annotated[float, typer.Option(help="Seconds for all trials together.")] = 60.0,
    json: Annotated[
        Path | None, typer.Option(help="Write the findings as JSON to this file; - for the terminal.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF for code-review tools.")] = None,
    profile: Annotated[  # noqa: FBT002 - typer's way
        bool, typer.Option("--profile", help="Also: which transform and which line the time goes to.")
    ] = False,
) -> None:
    """Find what is wrong with a program's data loading, and prove it."""
    from unjam.doctor.check.command import check as doctor  # noqa: PLC0415 - a command imports what it needs
    from unjam.doctor.check.command.target_process import CannotExamine  # noqa: PLC0415 - as above
    from unjam.doctor.report import machine, text  # noqa: PLC0415 - as above

    if budget <= 0:
        _stop(f"--budget takes a number of seconds, not {budget:g}")
    _check_folders(json, html, sarif)
    quiet = str(json) == "-"
    said = console(stderr=True)
    with said.status("") if said.is_terminal else contextlib.nullcontext() as status:

        def say(words: str) -> None:
            if status is not None:
                status.update(escape(words))
            elif not quiet:
                said.print(words, soft_wrap=True)

        try:
            patient = doctor.open_patient(target, arguments or [], module=module)
            diagnosis = doctor.check(patient, target, budget, say, profile=profile)
        except CannotExamine as error:
            _stop(str(error))
    _write(json, machine.as_json(diagnosis, __version__))
    _write(sarif, machine.as_sarif(diagnosis, __version__))
    if html is not None:
        from unjam.doctor.report import html as page  # noqa: PLC0415 - as above

        _write(html, page.render(diagnosis, __version__))
    if not quiet:
        text.show(diagnosis, console(with_markup=True))
    raise typer.Exit(diagnosis.exit_code)


@app.command(context_settings={"ignore_unknown_options": True})
def tune(
    target: _Target,
    arguments: _Arguments = None,
    module: _Module = False,  # noqa: FBT002 - typer's way
    budget: Annotated[float, typer.Option(help="Seconds for all settings together.")] = 60.0,
    step_ms: Annotated[float | None, typer.Option(help="Milliseconds that a training step takes.")] = None,
    steps: Annotated[int, typer.Option(help="Run the script itself for so many batches, to learn that time.")] = 0,
    profile: Annotated[  # noqa: FBT002 - typer's way
        bool, typer.Option("--profile", help="Which transform and which line the time goes to.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write the result as JSON to this file; - for the terminal.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
) -> None:
    """Find the cheapest setting of a program's loader that is enough."""
    from unjam.doctor.report import tune as report  # noqa: PLC0415 - as above
    from unjam.doctor.tune.command import CannotTune, Wanted, climb  # noqa: PLC0415 - a command imports what it needs

    _check_folders(json, html)
    wanted = Wanted(target, arguments or [], module, budget, step_ms, steps, profile)
    quiet = str(json) == "-"
    try:
        with progress(quiet=quiet) as say:
            tuned, loaders = climb(wanted, say)
    except CannotTune as error:
        _stop(str(error))
    if not quiet:
        report.show(tuned, console(with_markup=True))
        if loaders > 1:
            typer.echo(report.others(loaders))
    _write(json, report.as_json(tuned, __version__))
    if html is not None:
        from unjam.doctor.report import page  # noqa: PLC0415 - as above

        _write(html, page.of_climb(tuned, __version__, f"unjam tune {target}"))
    raise typer.Exit(0 if tuned.choice is not None else 2)


@app.command()
def why(
    pid: Annotated[
        int | None, typer.Argument(help="Any process of the stuck program; without one, the stuck one is looked for.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Look for longer than the usual two.")] = 0.0,
    json: Annotated[
        Path | None, typer.Option(help="Write the findings as JSON to this file; - for the terminal.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
    dump: Annotated[
        Path | None,
        typer.Option(
            help="Keep all the evidence in this file, as JSON: stacks, command lines, values of local variables."
        ),
    ] = None,
    rescue: Annotated[  # noqa: FBT002 - typer's way
        bool, typer.Option("--rescue", help="End the one stuck worker of an unjam loader, which then recovers.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --rescue.")] = False,  # noqa: FBT002
) -> None:
    """Say why a running program is stuck, without touching it."""
    from unjam.doctor.report import machine, scene  # noqa: PLC0415 - as above
    from unjam.doctor.why import find  # noqa: PLC0415 - a command imports what it needs

    try:
        family = _choose(find.find(pid))
        diagnosis = find.why(family, seconds)
    except find.CannotLook as error:
        _stop(str(error))
    _write(json, machine.as_json(diagnosis, __version__))
    if diagnosis.scene is not None and dump is not None:
        _write(dump, machine.dumps(scene.as_dict(diagnosis.scene)))
        typer.echo(
            printable_line(
                f"{dump} holds the values of the program's variables: look through it before you give it away"
            ),
            err=True,
        )
    if html is not None:
        from unjam.doctor.report import html as page  # noqa: PLC0415 - as above

        _write(html, page.render(diagnosis, __version__))
    if str(json) != "-":
        scene.show(diagnosis, console(with_markup=True))
    if rescue:
        _rescue(diagnosis, family, asked=not yes)
    raise typer.Exit(diagnosis.exit_code)


class _Program(TyperCommand):
    """A command whose last words belong to another program: after `-m module` as after a script's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Mark where the other program's words begin."""
        takes_value = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            module = args[at] in ("-m", "--module")
            at += 2 if args[at] in takes_value else 1
            if module:
                args = [*args[:at], "--", *args[at:]]
                break
        return super().parse_args(ctx, args)


@app.command(cls=_Program, context_settings={"allow_interspersed_args": False})
def run(
    program: Annotated[
        list[str] | None, typer.Argument(help="A script and its arguments; or -m module arguments.")
    ] = None,
    module: Annotated[str, typer.Option("-m", "--module", help="Run a module, as python -m does.")] = "",
    observe: Annotated[bool, typer.Option("--observe", help="Keep torch's loader and only watch.")] = False,  # noqa: FBT002
    on_error: Annotated[str, typer.Option(help="raise, skip, replace or retry.")] = "raise",
    retries: Annotated[int | None, typer.Option(help="How often a sample is tried again.")] = None,
    max_errors: Annotated[str, typer.Option(help="Samples that may fail in an epoch: 10, or 0.01 of it.")] = "",
    error_log: Annotated[Path | None, typer.Option(help="A file that gets one line of JSON for each failure.")] = None,
    sample_timeout: Annotated[float | None, typer.Option(help="Seconds that one sample may take.")] = None,
    warn_after: Annotated[float | None, typer.Option(help="Seconds without a batch before a warning.")] = None,
    on_worker_death: Annotated[str, typer.Option(help="restart or raise.")] = "restart",
    max_restarts: Annotated[int | None, typer.Option(help="Workers that may be replaced in an epoch.")] = None,
    worker_threads: Annotated[int | None, typer.Option(help="Compute threads of each worker.")] = None,
    memory_budget: Annotated[int | None, typer.Option(help="Bytes of batches between sampler and training.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Which transform and line the time goes to.")] = False,  # noqa: FBT002
    auto: Annotated[bool, typer.Option("--auto", help="Choose the number of workers while it runs.")] = False,  # noqa: FBT002
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page at the end.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for Perfetto or chrome://tracing.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the summary as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No summary on the terminal.")] = False,  # noqa: FBT002
) -> None:
    """Run an unmodified program on unjam's loader, and tell at the end how its data loading went."""
    from unjam.doctor.run import launch  # noqa: PLC0415 - a command imports what it needs

    options = {
        "on_error": on_error, "retries": retries, "max_errors": max_errors, "error_log": error_log,
        "sample_timeout": sample_timeout, "warn_after": warn_after, "on_worker_death": on_worker_death,
        "max_restarts": max_restarts, "worker_threads": worker_threads, "memory_budget": memory_budget,
        "profile": profile or None,
    }  # fmt: skip
    files = {name: str(path.absolute()) for name, path in (("html", html), ("trace", trace), ("json", json)) if path}
    try:
        launch.launch(program or [], module, options, observe=observe, quiet=quiet, auto=auto, files=files)
    except launch.CannotRun as error:
        _stop(str(error))


@app.command()
def site() -> None:
    """Print the folder that, on PYTHONPATH and with UNJAM=1 set, makes any Python program run as `unjam run` does."""
    from unjam.doctor.run.settings import SITE  # noqa: PLC0415 - as above

    typer.echo(SITE)


@app.command()
def rules() -> None:
    """Every known cause."""
    from unjam.doctor.rules import RULES  # noqa: PLC0415 - as above

    shown = console()
    for file in RULES:
        shown.print(f"{file.RULE.code}  {file.RULE.name:36} {file.__doc__.splitlines()[0]}", soft_wrap=True)


@app.command()
def explain(code: Annotated[str, typer.Argument(help="UJ204, or the rule's name.")]) -> None:
    """What a code means, why it happens, how to confirm it and how to fix it."""
    from unjam.doctor.report import catalogue  # noqa: PLC0415 - as above

    found = catalogue.find(code)
    if found is None:
        _stop(f"there is no rule {code}; `unjam rules` lists them")
    console().print(catalogue.explanation(found), soft_wrap=True)


def _choose(found: list[Family]) -> Family:
    """The one program, the one that has been at rest for long, or the one that the user names."""
    if not found:
        _stop("no Python program with data workers was found; name a process: unjam why PID")
    if len(found) == 1:
        return found[0]
    said = console(stderr=True)
    for number, family in enumerate(found, 1):
        main = family.mains[0]
        said.print(
            f"{number}. pid {main.pid}  {len(family.mains)} main, {len(family.workers)} workers, without CPU for "
            f"{family.rested:.0f} s  {main.line}",
            soft_wrap=True,
        )
    if sys.stdin.isatty():
        number = int(typer.prompt("which one", default=1, err=True, type=int))
        return found[min(max(number, 1), len(found)) - 1]
    # torch's idle workers wake up every five seconds: one that has not for twice as long is stuck
    stuck = [family for family in found if family.rested > 10]
    if len(stuck) != 1:
        _stop("several programs look like trainings; name a process: unjam why PID")
    return stuck[0]


def _rescue(diagnosis: Diagnosis, family: Family, *, asked: bool) -> None:
    from unjam.doctor.why import rescue  # noqa: PLC0415 - as above

    try:
        worker = rescue.stuck_worker(diagnosis, family)
    except rescue.CannotRescue as error:
        _stop(str(error))
    question = f"end {worker.name}? the loader starts another and makes its batches again"
    if asked and not typer.confirm(printable_line(question), err=True):
        worker.close()
        return
    done = "was ended" if worker.end() else "had ended by itself"
    typer.echo(printable_line(f"{worker.name} {done}"), err=True)


def _check_folders(*paths: Path | None) -> None:
    """Minutes of measuring are not to end in a folder that is not there."""
    for path in paths:
        if path is not None and str(path) != "-" and not path.absolute().parent.is_dir():
            _stop(f"{path} cannot be written: the folder does not exist")


def _write(path: Path | None, text: str) -> None:
    if path is None:
        return
    if str(path) == "-":
        typer.echo(text)
        return
    try:
        write_report(str(path), text + "\n")
    except OSError as error:
        _stop(f"{path} cannot be written: {error.strerror}")


def _stop(text: str) -> NoReturn:
    typer.echo(printable(masked(f"error: {text}")), err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
