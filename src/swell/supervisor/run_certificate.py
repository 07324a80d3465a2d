"""The certificate of a run: whoever holds the run's key derives the same one, with the private key that belongs to it.

Python's ``ssl`` has no pre-shared keys before 3.13 and makes no certificates, so this file does the little that is
needed: a key on the curve P-256 and an X.509 certificate that signs itself. Both follow from the key of the run alone.
They are computed once, when a process starts; encryption and proof of possession are OpenSSL's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import textwrap
from dataclasses import dataclass

# NIST P-256: y^2 = x^3 - 3x + b over the integers modulo p; G has order n (FIPS 186-4, D.1.2.3).
_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_Point = tuple[int, int] | None  # None is the point at infinity

_EC_PUBLIC_KEY = bytes.fromhex("06072a8648ce3d0201")  # 1.2.840.10045.2.1
_PRIME256V1 = bytes.fromhex("06082a8648ce3d030107")  # 1.2.840.10045.3.1.7
_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")  # 1.2.840.10045.4.3.2
_COMMON_NAME = bytes.fromhex("0603550403")  # 2.5.4.3
_BASIC_CONSTRAINTS = bytes.fromhex("0603551d13")  # 2.5.29.19


@dataclass(frozen=True, slots=True)
class RunCertificate:
    """Certificate and private key as PEM text, and the SHA-256 of the certificate for people to compare."""

    certificate: str
    private_key: str
    fingerprint: str


def run_certificate(key: bytes) -> RunCertificate:
    """The certificate that follows from the key of a run, the same wherever it is computed.

    >>> run_certificate(bytes(32)) == run_certificate(bytes(32))
    True
    """
    secret = _number(key, b"private key")
    public = _multiply(secret, _G)
    assert public is not None
    point = b"\x04" + public[0].to_bytes(32) + public[1].to_bytes(32)
    spki = _sequence(_sequence(_EC_PUBLIC_KEY, _PRIME256V1), _bits(point))
    name = _sequence(_der(0x31, _sequence(_COMMON_NAME, _der(0x0C, b"swell run"))))
    # The run's key decides who belongs to it, not a date.
    validity = _sequence(_der(0x18, b"20000101000000Z"), _der(0x18, b"99991231235959Z"))
    authority = _sequence(_BASIC_CONSTRAINTS, _der(0x01, b"\xff"), _der(0x04, _sequence(_der(0x01, b"\xff"))))
    body = _sequence(
        _der(0xA0, _integer(2)),
        _integer(_number(key, b"serial") >> 100),
        _ECDSA_SHA256,
        name,
        validity,
        name,
        spki,
        _der(0xA3, _sequence(authority)),
    )
    certificate = _sequence(body, _ECDSA_SHA256, _bits(_signature(secret, body, key)))
    private = _sequence(_integer(1), _der(0x04, secret.to_bytes(32)), _der(0xA0, _PRIME256V1), _der(0xA1, _bits(point)))
    return RunCertificate(
        certificate=_pem("CERTIFICATE", certificate),
        private_key=_pem("EC PRIVATE KEY", private),
        fingerprint=hashlib.sha256(certificate).hexdigest(),
    )


def _number(key: bytes, purpose: bytes) -> int:
    """A number from 1 to n - 1 that only a holder of the key can compute; even over them but for a part in 2^256."""
    blocks = [hmac.digest(key, b"swell run certificate, " + purpose + bytes([each]), "sha256") for each in (1, 2)]
    return int.from_bytes(b"".join(blocks)) % (_N - 1) + 1


def _signature(secret: int, message: bytes, key: bytes) -> bytes:
    """ECDSA (FIPS 186-4, 6.4) with a number that follows from key and message, as RFC 6979 has it in spirit."""
    digest = hashlib.sha256(message).digest()
    once = _number(key, b"signature of " + digest)
    point = _multiply(once, _G)
    assert point is not None
    r = point[0] % _N
    s = pow(once, -1, _N) * (int.from_bytes(digest) + r * secret) % _N
    return _sequence(_integer(r), _integer(s))


def _add(one: _Point, other: _Point) -> _Point:
    if one is None or other is None:
        return other if one is None else one
    if one[0] == other[0] and (one[1] + other[1]) % _P == 0:
        return None
    if one == other:
        slope = (3 * one[0] * one[0] - 3) * pow(2 * one[1], -1, _P) % _P
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, _P) % _P
    x = (slope * slope - one[0] - other[0]) % _P
    return x, (slope * (one[0] - x) - one[1]) % _P


def _multiply(factor: int, point: _Point) -> _Point:
    total: _Point = None
    while factor:
        if factor & 1:
            total = _add(total, point)
        point, factor = _add(point, point), factor >> 1
    return total


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    size = (length.bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + length.to_bytes(size) + content


def _sequence(*items: bytes) -> bytes:
    return _der(0x30, b"".join(items))


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def _bits(content: bytes) -> bytes:
    return _der(0x03, b"\0" + content)


def _pem(label: str, content: bytes) -> str:
    lines = "\n".join(textwrap.wrap(base64.b64encode(content).decode(), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
