"""Every error a user can meet. Each message says what was given, what was expected and how to fix it.

The grammar is ``x is v; expected .... Do ....``
"""


class SwellError(Exception):
    """The base of all errors raised by swell on purpose."""


class ConfigError(SwellError, ValueError):
    """An argument that can never work: a wrong type, a negative size, bounds that cross."""


class DependencyError(SwellError, ImportError):
    """An optional package that is needed and not installed."""


class PlanError(SwellError, ValueError):
    """A global batch that cannot be laid out on these replicas within these bounds."""


class TraceError(SwellError, ValueError):
    """A trace that cannot be read, or that ended before the run."""


class DataError(SwellError, ValueError):
    """A data set that cannot be trained on: it is empty, has no length, or changed during the run."""


class LoadError(SwellError, RuntimeError):
    """A batch that could not be loaded: the data set raised an error (the cause), or a worker process was lost."""

    def __init__(self, message: str, *, indices: tuple[int, ...] = (), lost: bool = False) -> None:
        super().__init__(message)
        self.indices = indices
        """Data set indices of the batch."""
        self.lost = lost
        """Whether a worker process was lost; the next attempt uses a new one."""


class LoopError(SwellError, RuntimeError):
    """Calls of the training loop in an order that loses or repeats samples."""


class LossError(SwellError, ArithmeticError):
    """A loss that is not a scalar, or not finite."""


class DisagreementError(SwellError, RuntimeError):
    """Replicas that were given different models, data or settings."""


class CheckpointError(SwellError, RuntimeError):
    """A checkpoint that cannot be written, read, or does not fit this run."""


class DamagedCheckpointError(CheckpointError):
    """A damaged checkpoint: its files are missing, cut short or changed. An older one may be whole."""


class RunFolderError(SwellError, RuntimeError):
    """A run's folder that another process writes or took over from this one, or that this user cannot write."""


class WorldError(SwellError, RuntimeError):
    """The world of replicas cannot be formed, or was lost."""
