"""Runs code as a program whose files are protected: `python run_isolated.py WAY FOLDER CODE`, and prints what was refused.

WAY is what must have been chosen; FOLDER is where the doctor's own files lie.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from unjam.system.isolation.program_files import ProgramFiles


def main() -> int:
    way, base, code = sys.argv[1:]
    files = ProgramFiles.choose(base)
    assert files.isolation == way, f"{files.isolation}: {files.reason}"
    files.save()
    refusals = files.listen()
    pid = os.fork()
    if pid == 0:
        failed = 1
        try:
            os.environ.update(files.environment())
            files.enter()
            exec(compile(code, "code", "exec"), {"__name__": "__main__", "files": files})
            failed = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(failed)
    failed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if refusals is not None:
        refusals.close()
        files.refused = list(refusals.named)
    print(json.dumps({"refused": files.refused, "not covered": files.not_covered, "said": files.description()}))
    return failed


if __name__ == "__main__":
    sys.exit(main())
