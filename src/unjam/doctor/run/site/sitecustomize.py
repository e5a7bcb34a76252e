"""Runs when an interpreter starts with this folder on its path; then runs the next sitecustomize.

It uses only the standard library and must not fail: it also runs in interpreters without unjam.
"""

import os
import sys


def _begin() -> None:
    if not any(os.environ.get(name) for name in ("UNJAM_FILES", "UNJAM_WATCH", "UNJAM", "UNJAM_RUN")):
        return
    beginnings = []
    try:
        if os.environ.get("UNJAM_FILES"):
            from unjam.system.isolation import redirect

            beginnings.append(redirect.begin)
        if os.environ.get("UNJAM_WATCH"):
            from unjam.doctor.check.target import begin_observing

            beginnings.append(begin_observing.begin)
        elif os.environ.get("UNJAM") or os.environ.get("UNJAM_RUN"):
            from unjam.doctor.run import begin

            beginnings.append(begin.begin)
    except ImportError:
        return  # the interpreter of another environment
    try:
        for one in beginnings:
            one()
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
