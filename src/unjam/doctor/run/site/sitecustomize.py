"""Runs when an interpreter starts with this folder on its path; then runs the next sitecustomize.

It uses only the standard library and must not fail: it also runs in interpreters without unjam.
"""

import os
import sys


def _begin() -> None:
    watched = os.environ.get("UNJAM_WATCH")
    if not watched and not os.environ.get("UNJAM") and not os.environ.get("UNJAM_RUN"):
        return
    try:
        if watched:
            from unjam.doctor.check.target.observer import begin
        else:
            from unjam.doctor.run.begin import begin
    except ImportError:
        return  # the interpreter of another environment
    try:
        begin()
    except Exception as error:  # the program must run even if unjam cannot
        sys.stderr.write(ascii(f"unjam: the program runs without it: {type(error).__name__}: {error}")[1:-1] + "\n")


def _next() -> None:
    """Import the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    mine = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.path_importer_cache.pop(here, None)
    try:
        import sitecustomize  # noqa: F401 - the next one on the path
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", mine)  # type: ignore[arg-type]  # never None here


_begin()
_next()
