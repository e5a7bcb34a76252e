"""What keeps one worker from disturbing the others: compute threads.

NOTE [ One compute thread ]

N workers that each start a pool of as many threads as the machine has cores are slower than N workers with one thread
each, and a pool that was started before a fork is dead after it: calling into it may hang for ever. So a worker caps
every pool it can reach: torch's by API, BLAS and OpenMP through threadpoolctl, OpenCV by API as soon as it is imported,
and libraries not loaded yet by the variables that they read when they are loaded. Only variables that a library really
reads are listed; OpenCV reads no variable with OPENMP in its name.
"""

from __future__ import annotations

import os

import torch

from unjam.worker.imports import after_import

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


def cap_threads(threads: int, *, loaded_elsewhere: bool) -> None:
    """Cap every pool in this process. `loaded_elsewhere`: libraries were loaded before the variables were set."""
    torch.set_num_threads(threads)
    os.environ.update(thread_environment(threads))
    if loaded_elsewhere:
        import threadpoolctl  # noqa: PLC0415 - milliseconds, and only needed after a fork of the parent

        threadpoolctl.threadpool_limits(threads)
    after_import("cv2", lambda cv2: cv2.setNumThreads(threads))
