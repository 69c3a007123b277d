"""Certificates made for a test: an authority, and what it signed for 127.0.0.1."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """An authority, a server's and a client's certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("test authority")
    authority = _builder(name, name, key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    signed = authority.sign(key, hashes.SHA256())
    (folder / "authority.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    for who in ("server", "client"):
        own = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        made = _builder(_name(who), name, own.public_key()).add_extension(names, critical=False)
        certificate = made.sign(key, hashes.SHA256())
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        (folder / f"{who}.pem").write_bytes(pem)
        (folder / f"{who}-key.pem").write_bytes(
            own.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return Certificates(
        folder / "authority.pem",
        folder / "server.pem",
        folder / "server-key.pem",
        folder / "client.pem",
        folder / "client-key.pem",
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
