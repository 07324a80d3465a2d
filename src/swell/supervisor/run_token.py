"""The token of a run on several machines: who holds it belongs to the run, and may control it."""

from __future__ import annotations

import os
from pathlib import Path

from swell.errors import ConfigError
from swell.supervisor.run_dir import RunDir
from swell.supervisor.secure_channel import new_run_key, read_run_key, write_run_key

VARIABLE = "SWELL_TOKEN"


def find_token(file: str | None = None, *, run_dir: Path | None = None) -> bytes:
    """The token from a file, else from ``SWELL_TOKEN`` or the file in ``SWELL_TOKEN_FILE``, else from the run's folder.

    Raises ``ConfigError`` where there is none, or where others can read its file.
    """
    text, named = os.environ.get(VARIABLE), file or os.environ.get(f"{VARIABLE}_FILE")
    if text and file is None:
        try:
            token = bytes.fromhex(text.strip())
        except ValueError:
            token = b""
        if len(token) != 32:
            raise ConfigError(
                f"{VARIABLE} has {len(text.strip())} characters; expected the 64 hexadecimal digits of a run's token. "
                f"Copy it whole from the token file of the run, or make one: openssl rand -hex 32."
            )
        return token
    if named:
        return read_run_key(Path(named))
    if run_dir is not None and os.path.exists(RunDir(run_dir).token_file):
        return read_run_key(RunDir(run_dir).token_file)
    raise ConfigError(
        f"the token of the run is missing; expected it in {VARIABLE} or in a file named by --token-file. The run keeps "
        f"it in control/token of its folder: bring it to this machine in secret."
    )


def keep_token(run_dir: RunDir, file: str | None = None) -> bytes:
    """The token for a run that is started: as ``find_token`` has it, else a new one; it is written into its folder.

    Call it when the run is locked.
    """
    try:
        token = find_token(file, run_dir=run_dir.path)
    except ConfigError:
        if file or os.environ.get(VARIABLE) or os.environ.get(f"{VARIABLE}_FILE") or run_dir.token_file.exists():
            raise
        token = new_run_key()
    if not run_dir.token_file.exists() or read_run_key(run_dir.token_file) != token:
        run_dir.token_file.unlink(missing_ok=True)
        write_run_key(run_dir.token_file, token)
    return token
