"""Limit the compute threads of a worker, so that workers do not slow each other down.

NOTE [ One compute thread ]

N workers that each start one thread per core are slower than N workers with one thread each. Also,
the threads of a pool do not survive a fork: calling into the pool afterwards may hang for ever. So
a worker limits every pool it can reach: torch by API, BLAS and OpenMP through threadpoolctl,
OpenCV by API as soon as it is imported, and libraries not loaded yet by the variables that they
read when they are loaded. We list only variables that a library really reads; OpenCV reads no
variable with OPENMP in its name.

In a child of a process that has used its pools, a call that resizes a pool may join threads that no
longer exist. We tested such children, library by library:
- `torch.set_num_threads(1)` is safe (torch's own workers call it).
- Lowering the thread count of OpenMP and OpenBLAS is safe. Without it, OpenMP in scikit-learn and
  torch waits for ever.
- `cv2.setNumThreads(1)` crashes or waits for ever (OpenCV 5.0), even if the parent has set 0.
- `cv2.setNumThreads(0)` is safe, and so is using OpenCV unchanged.
So, like a torch worker, a forked worker does not touch an OpenCV that its parent had imported.
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
    """Return the variables that limit the pools of libraries loaded later."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def cap_threads(threads: int, *, loaded_elsewhere: bool, forked: bool) -> None:
    """Limit every thread pool in this process.

    `loaded_elsewhere`: libraries were loaded before the variables were set.
    `forked`: this process was forked from one that may have used its pools.
    """
    import torch  # noqa: PLC0415 - thread_environment() does not need torch

    torch.set_num_threads(threads)
    os.environ.update(thread_environment(threads))
    if loaded_elsewhere:
        _lower_pools(threads)
    if not forked or "cv2" not in sys.modules:
        after_import("cv2", lambda cv2: cv2.setNumThreads(threads))


def switch_off_opencv_threads() -> None:
    """Switch off OpenCV's threads with a call that is safe in forked children.

    See NOTE [ One compute thread ].
    """
    after_import("cv2", lambda cv2: cv2.setNumThreads(0))


def _lower_pools(threads: int) -> None:
    import threadpoolctl  # noqa: PLC0415 - takes milliseconds and is rarely needed

    for library in threadpoolctl.ThreadpoolController().lib_controllers:
        if library.num_threads > threads:  # raising the number may start threads
            library.set_num_threads(threads)
