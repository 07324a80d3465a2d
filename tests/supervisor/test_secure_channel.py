"""Links between machines: nobody without the key of the run gets one, and nothing readable travels over it."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.errors import ConfigError, SwellError, WorldError
from swell.supervisor.run_certificate import run_certificate
from swell.supervisor.secure_channel import RunIdentity, new_run_key, read_run_key, write_run_key

KEY = new_run_key()


def both(one: Callable[[], Any], other: Callable[[], Any]) -> tuple[Any, Any]:
    """The results of both ends, at the same time; an error is a result."""
    results: list[Any] = [None, None]

    def call(place: int, function: Callable[[], Any]) -> None:
        try:
            results[place] = function()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    return results[0], results[1]


def pair(server_key: bytes, client_key: bytes) -> tuple[Any, Any]:
    near, far = socket.socketpair()
    server, client = RunIdentity(server_key), RunIdentity(client_key)
    return both(lambda: server.accept(near, timeout_s=5.0), lambda: client.join(far, timeout_s=5.0))


def test_holders_of_the_key_are_connected_by_tls_1_3() -> None:
    server, client = pair(KEY, KEY)
    with server, client:
        assert server.version() == client.version() == "TLSv1.3"
        client.sendall(b"hello")
        assert server.recv(5) == b"hello"
        assert server.getpeercert(binary_form=True) == client.getpeercert(binary_form=True)


def test_another_key_is_refused_at_both_ends() -> None:
    for result in pair(KEY, new_run_key()):
        assert isinstance(result, WorldError) and "holds its key" in str(result)


def refused(stranger: Callable[[socket.socket], object]) -> None:
    """The listening end refuses whoever does this."""
    near, far = socket.socketpair()
    identity = RunIdentity(KEY)

    def strange() -> None:
        with far:
            stranger(far)

    result, _ = both(lambda: identity.accept(near, timeout_s=1.0), strange)
    assert isinstance(result, WorldError)


def without_certificate(end: socket.socket) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(end) as secured:
        secured.sendall(b"+")
        secured.recv(1)


def with_old_tls(end: socket.socket) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.wrap_socket(end)


@pytest.mark.parametrize(
    "stranger",
    [without_certificate, with_old_tls, lambda end: end.sendall(b'{"say": "stop"}\n'), lambda end: end.recv(1)],
    ids=["no certificate", "TLS 1.2", "plain text", "silence"],
)
def test_strangers_are_refused_and_not_waited_for(stranger: Callable[[socket.socket], object]) -> None:
    refused(stranger)


def test_a_false_server_learns_nothing() -> None:
    near, far = socket.socketpair()
    own = run_certificate(new_run_key())

    def serve(folder: str) -> None:
        file = Path(folder) / "pem"
        file.write_text(own.private_key + own.certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        with near, context.wrap_socket(near, server_side=True) as secured:
            secured.sendall(b"+")
            assert not secured.recv(1), "the client says nothing"

    with tempfile.TemporaryDirectory() as folder:
        result, _ = both(lambda: RunIdentity(KEY).join(far, timeout_s=5.0), lambda: serve(folder))
    assert isinstance(result, WorldError)


def test_what_is_sent_cannot_be_read_on_the_way() -> None:
    near, middle_near = socket.socketpair()
    middle_far, far = socket.socketpair()
    seen: list[bytes] = []

    def carry(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(65536):
            seen.append(data)
            target.sendall(data)

    ways = ((middle_near, middle_far), (middle_far, middle_near))
    threads = [threading.Thread(target=carry, args=ends) for ends in ways]
    for thread in threads:
        thread.start()
    identity = RunIdentity(KEY)
    server, client = both(lambda: identity.accept(near, timeout_s=5.0), lambda: identity.join(far, timeout_s=5.0))
    with server, client:
        client.sendall(b"the weights of the model")
        assert server.recv(100) == b"the weights of the model"
        assert b"weights" not in b"".join(seen) and KEY not in b"".join(seen)
    for end in (middle_near, middle_far):
        end.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for end in (middle_near, middle_far):
        end.close()


def test_a_listening_machine_listens_on_one_address_only() -> None:
    identity = RunIdentity(KEY)
    with identity.listen("127.0.0.1") as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"

        def answer() -> bytes:
            with identity.accept(listener.accept()[0], timeout_s=5.0) as end:
                return end.recv(2)

        def call() -> None:
            with identity.connect(host, port, timeout_s=5.0) as end:
                end.sendall(b"hi")

        assert both(answer, call) == (b"hi", None)
    with pytest.raises(ConfigError, match="every interface"):
        identity.listen("")
    with pytest.raises(WorldError, match="cannot be reached"):
        identity.connect("127.0.0.1", port, timeout_s=1.0)


@settings(max_examples=10)
@given(key=st.binary(min_size=32, max_size=32))
def test_every_key_gives_a_certificate_that_openssl_takes(key: bytes) -> None:
    server, client = pair(key, key)
    with server, client:
        assert server.version() == "TLSv1.3"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")
def test_the_certificate_is_sound_by_openssls_own_command(tmp_path: Path) -> None:
    mine = run_certificate(KEY)
    (tmp_path / "cert").write_text(mine.certificate)
    (tmp_path / "key").write_text(mine.private_key)
    check = ["openssl", "verify", "-check_ss_sig", "-CAfile", str(tmp_path / "cert"), str(tmp_path / "cert")]
    subprocess.run(check, check=True, capture_output=True)
    sound = subprocess.run(
        ["openssl", "ec", "-in", str(tmp_path / "key"), "-check", "-noout"], check=True, capture_output=True, text=True
    )
    assert "valid" in (sound.stdout + sound.stderr).lower()


def test_the_key_is_kept_in_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_run_key(path, KEY)
    assert path.stat().st_mode & 0o777 == 0o600 and read_run_key(path) == KEY
    with pytest.raises(OSError):
        write_run_key(path, KEY)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="readable or owned by other users"):
        read_run_key(path)
    for text in ("", "zz", "00" * 31):
        other = tmp_path / f"key-{len(text)}"
        other.write_text(text)
        other.chmod(0o600)
        with pytest.raises(SwellError, match="key of the run"):
            read_run_key(other)
    link = tmp_path / "link"
    os.symlink(path, link)
    with pytest.raises(ConfigError, match="symbolic link"):
        read_run_key(link)
