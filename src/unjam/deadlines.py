"""Every time limit for waiting on another process, by name, with the reason for its length.

A wait without an entry here is a bug; a test reads the source and checks this.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A number of seconds, and why it is this long."""

    seconds: float
    reason: str

    @property
    def milliseconds(self) -> int:
        """The limit as `poll` takes it."""
        return int(self.seconds * 1000)


# -- every process of a loader -------------------------------------------------------------------------------------------

LIVENESS_CHECK = Deadline(
    5.0, "how long one wait lasts before the process checks that the other side is alive; events end the wait earlier"
)
SEND_MESSAGE = Deadline(
    60.0, "how long sending one message through a full channel may take before the other side is lost"
)

# -- the workers of a loader ---------------------------------------------------------------------------------------------

FINISH_SAMPLE = Deadline(
    1.0, "how long a worker may take to finish its sample when it is asked to stop; stopping takes two seconds at most"
)
SIGTERM_GRACE = Deadline(0.3, "the time between SIGTERM and SIGKILL; some libraries catch SIGTERM")
SIGKILL_GRACE = Deadline(
    0.5,
    "how long a killed process may take to end; one that takes longer is in state D, and only the kernel can end it",
)
FORK_SERVER_START = Deadline(120.0, "importing torch from a cold network file system can take a minute")
FORK_SERVER_REPLY = Deadline(
    120.0, "forking takes milliseconds, but the server may be importing the dataset's libraries"
)
FORK_SERVER_LOCK = Deadline(240.0, "another thread may be starting the server and its workers")
TEMPLATE_BUILD = Deadline(
    600.0, "rebuilding millions of objects in a template takes seconds; importing from a slow disk takes minutes"
)
TEMPLATE_IDLE = Deadline(600.0, "a template without workers ends after this time and frees its memory")
STALL_CHECK = Deadline(
    1.0,
    "how often a waiting parent checks its busy workers for samples that exceed their timeout and for suspended processes",
)
SUSPENDED_GAP = Deadline(
    3.0, "if two checks are further apart than this, the parent was suspended, and perhaps its workers too"
)
STACK_DUMP = Deadline(
    0.5, "how long a worker may take to write its stack; the handler is C code and needs microseconds"
)
PROFILE_STACK = Deadline(0.1, "how long a profile waits for a worker's stack; a later one is not counted")
FIRST_RETRY = Deadline(0.05, "the pause before a failed sample is retried; it doubles with each retry")
LONGEST_RETRY = Deadline(5.0, "the longest pause between two retries; a file server needs seconds to recover")
PROBE_COLLATE = Deadline(
    5.0, "how long a failed collate function may be called on parts of its batch to find the sample that it fails on"
)
DEVICE_COPIES = Deadline(
    20.0,
    "how long closing a loader waits for copies to the device that still read its memory; each takes milliseconds, but the "
    "device may be busy with a long kernel",
)

# -- workers on a cluster ------------------------------------------------------------------------------------------------

NODE_COPY = Deadline(
    120.0,
    "how long another process of the same node may take to copy the dataset before this process makes its own copy",
)
NAME_CONFLICT = Deadline(1.0, "how long the process that holds a name may take to show that it belongs to this user")
NODE_REPLY = Deadline(
    0.5,
    "how long an agent waits for results before it replies with the state of its workers, so that the parent knows it",
)
NODE_SILENT = Deadline(
    30.0,
    "an agent that does not reply for this long is considered lost; while torch is imported on a cold node, it replies",
)
NODE_START = Deadline(
    300.0,
    "how long an actor may take to start: Ray may install a runtime environment, and torch may be on a network disk",
)
NODE_ANSWER = Deadline(3.0, "how long an agent may take to answer a question about one of its workers")
NODE_CLOSE = Deadline(2.0, "how long an agent may take to end its workers before its actor is killed")
PLACEMENT_RETRY = Deadline(1.0, "how often the cluster is asked for processors while workers wait for them")
REBALANCE = Deadline(10.0, "how often the cluster is asked for more processors while workers share some")

# -- the doctor ----------------------------------------------------------------------------------------------------------

TRIAL_CHECK = Deadline(0.05, "how often a trial is observed; its end is noticed at once")
LINE_CHECK = Deadline(0.005, "how often the current line of a trial without workers is read")
PREFETCH_DONE = Deadline(5.0, "how long a trial's consumer waits until the workers have filled the prefetch queue")
PROGRAM_CHECK = Deadline(0.1, "how often a watched program is observed; its end is noticed at once")
PROGRAM_EXIT = Deadline(
    6.0, "how long a watched program may take to exit after its last line before it counts as frozen"
)
PROGRAM_HELD = Deadline(
    300.0, "how long a watched program waits at its end for the trials that use its servers and files"
)
PROGRAM_CLEANUP = Deadline(5.0, "how long a program may take to clean up after the doctor has released it")
DOCTOR_ALIVE = Deadline(2.0, "how often a held program checks that the doctor that holds it is alive")
GATHER_FACTS = Deadline(20.0, "finding out whether a large dataset can be pickled takes seconds")
NEW_INTERPRETER = Deadline(60.0, "a new interpreter imports torch and the dataset's libraries")
PY_SPY = Deadline(3.0, "how long reading the stacks of another process once may take; it needs milliseconds")
GIT_STATUS = Deadline(10.0, "how long git may take to report whether a file is committed, before a backup is made")
FOREIGN_FILE = Deadline(
    5.0, "how long reading another user's file may take; a source file on an unresponsive network disk is left out"
)
