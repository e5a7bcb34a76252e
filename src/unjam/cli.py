"""The `unjam` command. Exit code 0: nothing found, 1: something found, 2: the tool could not do its work."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

try:
    import typer

    from unjam.cli_parsing import ProgramCommand, with_loader_options
    from unjam.doctor.report.terminal import console, escape, progress
except ImportError as missing:
    print(f"the command needs {missing.name}: pip install {missing.name}", file=sys.stderr)  # noqa: T201 - the command
    raise SystemExit(2) from missing

from unjam.system.masking import masked
from unjam.system.printable import printable, printable_line
from unjam.system.private_files import write_report
from unjam.units import duration
from unjam.version import __version__

if TYPE_CHECKING:
    from unjam.doctor.report.diagnosis import Diagnosis
    from unjam.doctor.why.families import Family

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


_OPTIONS_FIRST = {"allow_interspersed_args": False}
_ProgramWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROGRAM [ARGUMENTS]...",
        help="A script, a notebook, or package.module:thing (a DataLoader, a Dataset, a function). Everything after it is passed to the program.",
        show_default=False,
    ),
]
_Module = Annotated[
    str, typer.Option("-m", "--module", metavar="MODULE", help="Run a module instead of a script, like python -m.")
]
_Json = Annotated[Path | None, typer.Option(help="Write the result as JSON to this file; - means standard output.")]
_Html = Annotated[Path | None, typer.Option(help="Write a self-contained HTML page.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"unjam {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """A DataLoader that cannot freeze silently."""


@app.command(cls=ProgramCommand, context_settings=_OPTIONS_FIRST)
def check(
    ctx: typer.Context,
    program: _ProgramWords = None,
    module: _Module = "",
    budget: Annotated[float, typer.Option(help="Time limit for all trials together, in seconds.")] = 60.0,
    json: _Json = None,
    html: _Html = None,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF for code-review tools.")] = None,
    watch: Annotated[
        bool | None,
        typer.Option(
            "--watch/--no-watch",
            help="Where no complete view of the files is possible, run the program without isolation: what it writes persists; --no-watch stops it at its first iter(loader).",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Edit the program where an edit is proven to help.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print what --fix would change.")] = False,
    to_the_end: Annotated[bool, typer.Option("--all", help="Watch the program until it ends.")] = False,
    pool: Annotated[
        str,
        typer.Option(
            help="Only test, with one worker, whether the loaders work on this pool (ray).", show_default=False
        ),
    ] = "",
    evidence: Annotated[
        Path | None, typer.Option(help="Write all recorded facts as JSON, and a short summary next to it.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also report which lines take the most time.")] = False,
) -> None:
    """Find what is wrong with a program's data loading, and prove it."""
    from unjam.doctor.check.command import check as doctor
    from unjam.doctor.check.command.captured_program import CannotExamine
    from unjam.doctor.report import machine, text

    target, arguments = _target(program, module)
    if not budget > 0:
        problem = f"--budget: {budget:g} is not a positive number of seconds"
        _write(json, machine.not_examined(target, problem, __version__))
        _stop(problem)
    _check_folders(json, html, sarif, evidence)
    _check_evidence(evidence)
    if pool:
        pools = [f"{pool}:1" if pool == "ray" else pool]
        _try_pools(pools, target, arguments, json, batches=4, module=bool(module))
    quiet = str(json) == "-"
    stderr = console(stderr=True)
    with stderr.status("") if stderr.is_terminal else contextlib.nullcontext() as status:

        def say(words: str) -> None:
            if status is not None:
                status.update(escape(words))
            elif not quiet:
                stderr.print(words, soft_wrap=True)

        try:
            options = doctor.CheckOptions(budget, say, profile=profile, watch=watch, watch_to_end=to_the_end)
            diagnosis = doctor.check_program(target, arguments, options, module=bool(module))
        except CannotExamine as error:
            _write(json, machine.not_examined(target, masked(str(error)), __version__))
            _stop(str(error) + _misplaced(ctx, arguments))
        except Exception as error:
            _write(json, machine.not_examined(target, masked(f"{type(error).__name__}: {error}"), __version__))
            raise
    _write(json, machine.as_json(diagnosis, __version__))
    _write(sarif, machine.as_sarif(diagnosis, __version__))
    if html is not None:
        from unjam.doctor.report import html as page

        _write(html, page.render(diagnosis, __version__))
    if evidence is not None:
        from unjam.doctor.report import evidence as facts

        _write(evidence, facts.as_json(diagnosis, __version__))
        _write(evidence.with_suffix(".md"), facts.brief(diagnosis, __version__))
    if not quiet:
        text.show(diagnosis, console(with_markup=True))
    if fix or diff:
        from unjam.doctor.fix.command import CannotFix, fix_and_show

        try:
            fix_and_show(diagnosis, arguments, options, module=bool(module), write=fix, quiet=quiet)
        except CannotFix as error:
            _stop(str(error))
    raise typer.Exit(diagnosis.exit_code)


@app.command()
def why(
    pid: Annotated[
        int | None,
        typer.Argument(help="Any process of the stuck program. Without it, unjam searches for the stuck program."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Observe for this many seconds; by default about two.")] = 0.0,
    json: _Json = None,
    html: _Html = None,
    dump: Annotated[
        Path | None,
        typer.Option(help="Write all evidence to this file as JSON: stacks, command lines, values of local variables."),
    ] = None,
    rescue: Annotated[
        bool, typer.Option("--rescue", help="Kill the stuck worker of an unjam loader; the loader then replaces it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Explain why a running program is stuck, without touching it."""
    from unjam.doctor.report import machine, scene
    from unjam.doctor.why import find

    _check_folders(json, html, dump)
    try:
        family = _choose(find.find(pid))
        diagnosis = find.why(family, seconds)
    except find.CannotLook as error:
        _stop(str(error))
    _write(json, machine.as_json(diagnosis, __version__))
    if diagnosis.scene is not None and dump is not None:
        _write(dump, machine.dumps({"schema": 1, "unjam": __version__, **scene.as_dict(diagnosis.scene)}))
        typer.echo(
            printable_line(f"{dump} contains values of the program's variables: review it before you share it"),
            err=True,
        )
    if html is not None:
        from unjam.doctor.report import html as page

        _write(html, page.render(diagnosis, __version__))
    if str(json) != "-":
        scene.show(diagnosis, console(with_markup=True))
    if rescue:
        _rescue(diagnosis, family, asked=not yes)
    raise typer.Exit(diagnosis.exit_code)


@app.command(cls=ProgramCommand, context_settings=_OPTIONS_FIRST)
@with_loader_options
def run(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROGRAM [ARGUMENTS]...", help="A script and its arguments.", show_default=False),
    ] = None,
    module: _Module = "",
    observe: Annotated[bool, typer.Option("--observe", help="Keep torch's loader and only measure.")] = False,
    auto: Annotated[bool, typer.Option("--auto", help="Adapt the number of workers while the program runs.")] = False,
    html: _Html = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for Perfetto or chrome://tracing.")] = None,
    json: _Json = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the summary.")] = False,
    **options: Any,
) -> None:
    """Run an unmodified program on unjam's loader, and summarize its data loading at the end."""
    from unjam.doctor.run import launch

    _check_folders(html, trace, json)
    files = {
        name: str(path) if str(path) == "-" else str(path.absolute())
        for name, path in (("html", html), ("trace", trace), ("json", json))
        if path
    }
    given = {name: value for name, value in options.items() if value not in (None, False)}
    try:
        launch.launch(program or [], module, given, observe=observe, quiet=quiet, auto=auto, files=files)
    except launch.CannotRun as error:
        _stop(str(error))


@app.command(cls=ProgramCommand, context_settings=_OPTIONS_FIRST)
def tune(
    ctx: typer.Context,
    program: _ProgramWords = None,
    module: _Module = "",
    budget: Annotated[float, typer.Option(help="Time limit for all measurements together, in seconds.")] = 60.0,
    step_ms: Annotated[float | None, typer.Option(help="Duration of a training step in milliseconds.")] = None,
    steps: Annotated[int, typer.Option(help="Measure the step time by running the script for this many batches.")] = 0,
    profile: Annotated[
        bool, typer.Option("--profile", help="Report which transforms and lines take the time.")
    ] = False,
    pool: Annotated[
        str,
        typer.Option(
            help="Compare the program's own workers with this pool: ray, or ray:64 for 64 workers.", show_default=False
        ),
    ] = "",
    json: _Json = None,
    html: _Html = None,
) -> None:
    """Find the cheapest loader setting that is fast enough for a program."""
    from unjam.doctor.report import tune as report
    from unjam.doctor.tune.command import CannotTune, recommend

    target, arguments = _target(program, module)
    _check_folders(json, html)
    if pool:
        pools = ["processes", pool]
        _try_pools(pools, target, arguments, json, batches=steps or 100, module=bool(module))
    quiet = str(json) == "-"
    try:
        with progress(quiet=quiet) as say:
            tuned, loaders = recommend(
                target,
                arguments,
                say,
                module=bool(module),
                budget=budget,
                step_ms=step_ms,
                steps=steps,
                profile=profile,
            )
    except CannotTune as error:
        _stop(str(error) + _misplaced(ctx, arguments))
    if not quiet:
        report.show(tuned, console(with_markup=True))
        if loaders > 1:
            typer.echo(report.others(loaders))
    _write(json, report.as_json(tuned, __version__))
    if html is not None:
        from unjam.doctor.report import page

        _write(html, page.of_tune(tuned, __version__, f"unjam tune {target}"))
    raise typer.Exit(0 if tuned.choice is not None else 2)


@app.command()
def errors(
    log: Annotated[Path, typer.Argument(help="The file given as error_log=.")],
    by: Annotated[str, typer.Option(help="Show only one table: cause, sample or worker.")] = "",
    json: _Json = None,
) -> None:
    """Group the failures in an error log: by cause, by sample, by worker."""
    from unjam.loader.failures import error_log as report

    _check_folders(json)
    if by and by not in report.KINDS:
        _stop(f"--by: {by!r} is not cause, sample or worker")
    try:
        found = report.read(str(log))
    except OSError as error:
        _stop(f"{log} cannot be read: {error.strerror}")
    if found.unreadable and not found.incidents:
        _stop(f"{log} is not an error log: none of its {found.unreadable} lines is an incident")
    if json is not None:
        _write(json, report.dumps(found, __version__))
    if json is None or str(json) != "-":
        report.show(found, [by] if by else report.KINDS, console())
    raise typer.Exit(1 if found.incidents else 0)


@app.command()
def replay(
    log: Annotated[Path, typer.Argument(help="The file given as error_log=.")],
    line: Annotated[int, typer.Argument(help="A line number in that file, starting at 1; -1 is the last line.")],
    target: Annotated[str, typer.Argument(help="The dataset: package.module:thing or file.py:thing.")],
    pdb: Annotated[bool, typer.Option("--pdb", help="Open the debugger where it fails.")] = False,
) -> None:
    """Load a failed sample again in this process; with rng="sample", with the same random numbers."""
    from unjam.doctor import replay as replaying

    try:
        if ":" not in target:
            _stop(f"{target} is not an object: write package.module:thing or file.py:thing")
        incident = replaying.incident_at(str(log), line)
        failed = replaying.replay(incident, replaying.dataset_of(target), typer.echo, debug=pdb)
    except replaying.CannotReplay as problem:
        _stop(str(problem))
    raise typer.Exit(1 if failed else 0)


@app.command()
def explain(code: Annotated[str, typer.Argument(help="A code such as UJ204, or the rule's name.")]) -> None:
    """Explain a rule: what it means, why it happens, how to confirm it and how to fix it."""
    from unjam.doctor.report import catalogue

    found = catalogue.find(code)
    if found is None:
        _stop(f"there is no rule {code}; `unjam rules` lists all rules")
    console().print(catalogue.explanation(found), soft_wrap=True)


@app.command()
def rules() -> None:
    """List all rules, one for each known cause."""
    from unjam.doctor.rules import RULES

    shown = console()
    for file in RULES:
        shown.print(f"{file.RULE.code}  {file.RULE.name:36} {file.__doc__.splitlines()[0]}", soft_wrap=True)


@app.command()
def env(json: _Json = None) -> None:
    """Print this machine's limits, versions and start method, for bug reports."""
    from unjam.doctor.report import environment

    _check_folders(json)
    found = environment.gather()
    if json is None or str(json) != "-":
        environment.show(found, console())
    if json is not None:
        _write(json, environment.as_json(found))


@app.command()
def site() -> None:
    """Print the folder to add to PYTHONPATH; with UNJAM=1, any Python program then runs as under `unjam run`."""
    from unjam.doctor.run.settings import SITE

    typer.echo(SITE)


def _target(program: list[str] | None, module: str) -> tuple[str, list[str]]:
    """Return the program to examine, and its arguments."""
    words = program or []
    if module:
        return module, words
    if not words:
        _stop("give a script, a notebook, package.module:thing, or -m and a module")
    return words[0], words[1:]


def _try_pools(
    pools: list[str], target: str, arguments: list[str], json: Path | None, *, batches: int, module: bool
) -> NoReturn:
    """Run the program itself on each pool until it has some batches, and print what happened."""
    from unjam.doctor.run import pools as trials

    quiet = str(json) == "-"
    try:
        trials.check(pools, target, module=module)
        with progress(quiet=quiet) as say:
            found = trials.try_pools(pools, target, arguments, batches, say, module=module)
    except (ValueError, OSError) as error:
        _stop(str(error))
    _write(json, trials.as_json(found, target, __version__))
    if not quiet:
        typer.echo(printable(masked("\n".join(trials.lines(found)))))
    raise typer.Exit(1 if any(one.problem for one in found) else 0)


def _misplaced(ctx: typer.Context, arguments: list[str]) -> str:
    """Return a hint if one of unjam's options came after the program's name."""
    ours = [word for word in arguments if word.partition("=")[0] in ctx.meta["own_flags"]]
    return f"\n{ours[0]} was passed to the program; unjam's options must come before the program's name" if ours else ""


def _choose(found: list[Family]) -> Family:
    """Return the only program, the one that the user names, or the only one that looks stuck."""
    if not found:
        _stop("no Python program with data workers was found; give a process id: unjam why PID")
    if len(found) == 1:
        return found[0]
    stderr = console(stderr=True)
    for number, family in enumerate(found, 1):
        main = family.mains[0]
        stderr.print(
            f"{number}. pid {main.pid}  main processes: {len(family.mains)}, workers: {len(family.workers)}, idle for "
            f"{duration(family.rested)}  {main.line}",
            soft_wrap=True,
        )
    if sys.stdin.isatty():
        number = int(typer.prompt("Which program?", default=1, err=True, type=int))
        if not 0 < number <= len(found):
            _stop(f"there is no program {number} in the list")
        return found[number - 1]
    # torch's idle workers wake up every five seconds: a program that is idle for twice as long is stuck
    stuck = [family for family in found if family.rested > 10]
    if len(stuck) != 1:
        _stop("several programs look like training programs; give a process id: unjam why PID")
    return stuck[0]


def _rescue(diagnosis: Diagnosis, family: Family, *, asked: bool) -> None:
    from unjam.doctor.why import rescue

    try:
        worker = rescue.stuck_worker(diagnosis, family)
    except rescue.CannotRescue as error:
        _stop(str(error))
    question = f"kill {worker.name}? the loader then starts a replacement and loads its batches again"
    if asked and not typer.confirm(printable_line(question), err=True):
        return
    done = "was killed" if worker.end() else "had already exited"
    typer.echo(printable_line(f"{worker.name} {done}"), err=True)


def _check_folders(*paths: Path | None) -> None:
    """Stop if an output folder is missing, before minutes of measuring."""
    for path in paths:
        if path is not None and str(path) != "-" and not path.absolute().parent.is_dir():
            _stop(f"{path} cannot be written: the folder does not exist")


def _check_evidence(path: Path | None) -> None:
    if path is not None and (str(path) == "-" or path.suffix == ".md"):
        _stop(
            f"--evidence: {path} is not the name of a JSON file; the summary is written next to it, with the suffix .md"
        )


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
