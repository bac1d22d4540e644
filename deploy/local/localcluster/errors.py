"""What a person gets instead of a traceback."""


class ClusterError(Exception):
    """Something went wrong; the message is one line that says what to do. Exit code 1."""

    exit_code = 1


class CannotRun(ClusterError):
    """This machine, or these arguments, cannot run the cluster. Exit code 2."""

    exit_code = 2
