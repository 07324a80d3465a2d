"""Links between the machines of a run: encrypted, and only for those who hold the key of the run."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import tempfile
from pathlib import Path

from swell.core.regular_files import open_regular, read_regular
from swell.errors import ConfigError, WorldError
from swell.supervisor.run_certificate import run_certificate

_KEY_BYTES = 32


def new_run_key() -> bytes:
    """A key for a new run."""
    return secrets.token_bytes(_KEY_BYTES)


def write_run_key(path: Path, key: bytes) -> None:
    """Write the key into a new file that only its owner can read; bring it to the other machines in secret."""
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(key.hex().encode() + b"\n")


def read_run_key(path: Path) -> bytes:
    """The key in a file that only its owner can read; ``ConfigError`` for any other file."""
    try:
        status, text = path.lstat(), read_regular(path, limit=1024)
        key = bytes.fromhex(text.decode().strip())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the key of the run in {path} cannot be read ({error}); expected {_KEY_BYTES} bytes in hexadecimal. Copy "
            f"it from the machine where the run was started."
        ) from error
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o077:
        raise ConfigError(
            f"the key of the run in {path} is readable or owned by other users; expected a file that only you can "
            f"read. Make a new key, because this one may be known, and keep it with mode 0600."
        )
    _check(key)
    return key


class RunIdentity:
    """Opens links that both ends authenticate: each proves in the handshake that it holds the key of the run.

    TLS 1.3, with a certificate that follows from the key. Either end accepts this one certificate and no other, so
    neither names nor authorities of a network matter. Keys of a link are ephemeral: who learns the run's key later
    cannot read what was sent before.
    """

    def __init__(self, key: bytes) -> None:
        _check(key)
        mine = run_certificate(key)
        self.fingerprint = mine.fingerprint  # may be shown: it tells nothing of the key
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with tempfile.TemporaryDirectory(
            prefix="swell-key-"
        ) as folder:  # mode 0700; OpenSSL reads keys from files only
            file = Path(folder) / "identity.pem"
            descriptor = open_regular(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w") as out:
                out.write(mine.private_key + mine.certificate)
            for context in (self._server, self._client):
                context.minimum_version = ssl.TLSVersion.TLSv1_3
                context.check_hostname = False  # the certificate is the run's, on every machine
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_cert_chain(file)
                context.load_verify_locations(cadata=mine.certificate)

    def listen(self, host: str, port: int = 0) -> socket.socket:
        """A listening socket on this address alone; ``0.0.0.0`` or ``::`` only if you ask for it by that name."""
        if not host:
            raise ConfigError(
                "host is empty; expected the address to listen on, because an empty one would mean every interface. "
                "Give the address by which the other machines reach this one."
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)

    def accept(self, connection: socket.socket, *, timeout_s: float) -> ssl.SSLSocket:
        """The accepted connection, once its other end has proved that it holds the key; it is closed otherwise."""
        return self._secured(self._server, connection, server_side=True, timeout_s=timeout_s)

    def connect(self, host: str, port: int, *, timeout_s: float) -> ssl.SSLSocket:
        """A connection to a listening machine of the run."""
        try:
            connection = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise WorldError(
                f"{host}:{port} cannot be reached ({error}); expected a machine of the run. Check the address, and "
                f"that the run is active there."
            ) from error
        return self.join(connection, timeout_s=timeout_s)

    def join(self, connection: socket.socket, *, timeout_s: float) -> ssl.SSLSocket:
        """The connecting end of a connection that exists."""
        return self._secured(self._client, connection, server_side=False, timeout_s=timeout_s)

    def _secured(
        self, context: ssl.SSLContext, connection: socket.socket, *, server_side: bool, timeout_s: float
    ) -> ssl.SSLSocket:
        connection.settimeout(timeout_s)  # a stranger that says nothing is not waited for
        try:
            secured = context.wrap_socket(connection, server_side=server_side)
            # In TLS 1.3 a client is done before the server has looked at its certificate: a byte each way says yes.
            if server_side:
                secured.sendall(b"+")
                welcome = secured.recv(1)
            else:
                welcome = secured.recv(1)
                secured.sendall(b"+")
            if welcome != b"+":
                raise ConnectionError("the other end hung up")
        except (OSError, ssl.SSLError) as error:
            connection.close()
            raise WorldError(
                f"the other end of a connection did not prove that it belongs to this run ({error}); expected one that "
                f"holds its key (certificate {self.fingerprint[:16]}). Give all machines the same key."
            ) from error
        secured.settimeout(None)
        return secured


def _check(key: bytes) -> None:
    if len(key) != _KEY_BYTES:
        raise ConfigError(
            f"the key of the run has {len(key)} bytes; expected {_KEY_BYTES}. Make one with new_run_key, or copy it "
            f"whole."
        )
