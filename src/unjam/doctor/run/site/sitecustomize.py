"""Runs when an interpreter starts with this folder on its path: begins, then lets the machine's own sitecustomize have its turn.

Only the standard library is used here, and nothing may fail: this file also reaches interpreters that have never heard of unjam.
"""

import os
import sys


def _begin() -> None:
    if not os.environ.get("UNJAM") and not os.environ.get("UNJAM_RUN"):
        return
    try:
        from unjam.doctor.run.begin import begin
    except ImportError:
        return  # another environment's interpreter
    try:
        begin()
    except Exception as error:  # the program is worth more than the watching of it
        sys.stderr.write(ascii(f"unjam: the program runs without it: {type(error).__name__}: {error}")[1:-1] + "\n")


def _next() -> None:
    """The sitecustomize that this one stands in front of, if there is one."""
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
        sys.modules.setdefault("sitecustomize", mine)  # type: ignore[arg-type]  # it is there: this is it


_begin()
_next()
