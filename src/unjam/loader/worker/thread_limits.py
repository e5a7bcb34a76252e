"""What keeps one worker from disturbing the others: compute threads.

NOTE [ One compute thread ]

N workers that each start a pool of as many threads as the machine has cores are slower than N workers with one thread
each, and a pool that was started before a fork is dead after it: calling into it may hang for ever. So a worker caps
every pool it can reach: torch's by API, BLAS and OpenMP through threadpoolctl, OpenCV by API as soon as it is imported,
and libraries not loaded yet by the variables that they read when they are loaded. Only variables that a library really
reads are listed; OpenCV reads no variable with OPENMP in its name.

In a child of a process that has used its pools, a call that resizes a pool may join threads that are not there. Tried in such
children, library by library: `torch.set_num_threads(1)` is safe (torch's own workers call it); to lower the number of OpenMP's and
OpenBLAS's threads is safe, and without it scikit-learn's and torch's OpenMP wait for ever; `cv2.setNumThreads(1)` crashes
or waits for ever (OpenCV 5.0), also after the parent has set 0; `cv2.setNumThreads(0)` is safe, and so is using OpenCV as it is. So a
forked worker leaves an OpenCV that its parent had imported alone, as torch's does.
"""

from __future__ import annotations

import os
import sys

from unjam.system.import_hook import after_import

# read when the library is loaded or makes its first pool
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",  # libgomp, libomp, libiomp; Arrow's CPU pool
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "RAYON_NUM_THREADS",  # tokenizers and other Rust libraries
    "POLARS_MAX_THREADS",
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS",
)


def thread_environment(threads: int) -> dict[str, str]:
    """The variables that cap pools of libraries loaded later."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def cap_threads(threads: int, *, loaded_elsewhere: bool, forked: bool) -> None:
    """Cap every pool in this process.

    `loaded_elsewhere`: libraries were loaded before the variables were set. `forked`: from a process that may have used their pools.
    """
    import torch  # noqa: PLC0415 - not for whoever wants the variables only

    torch.set_num_threads(threads)
    os.environ.update(thread_environment(threads))
    if loaded_elsewhere:
        _lower_pools(threads)
    if not forked or "cv2" not in sys.modules:
        after_import("cv2", lambda cv2: cv2.setNumThreads(threads))


def switch_off_opencv_threads() -> None:
    """The one call of OpenCV's that was seen to do no harm in a forked child; see NOTE [ One compute thread ]."""
    after_import("cv2", lambda cv2: cv2.setNumThreads(0))


def _lower_pools(threads: int) -> None:
    import threadpoolctl  # noqa: PLC0415 - milliseconds, and only needed where libraries are loaded already

    for library in threadpoolctl.ThreadpoolController().lib_controllers:
        if library.num_threads > threads:  # to raise the number may start threads
            library.set_num_threads(threads)
