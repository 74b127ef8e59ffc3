"""Certificates and keys of a federation: one authority, one certificate for the server and one for each site."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedtailor.errors import FedTailorError

YEARS = 2


def make_authority(folder: Path) -> None:
    """Make a certificate authority that certifies this federation's server and sites, and nothing else."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedTailor federation")])
    certificate = (
        _certificate(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA384())
    )
    _write_secret(folder / "ca.key", _pem(key))
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def certify_server(folder: Path, hosts: Sequence[str]) -> None:
    """Make the server's key, and a certificate for these names and addresses signed by the authority in the folder."""
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    _certify(folder, hosts[0], folder / "server.key", folder / "server.crt", ExtendedKeyUsageOID.SERVER_AUTH, names)


def certify_site(folder: Path, name: str, key: Path, certificate: Path) -> None:
    """Make a site's key, and a certificate signed by the authority in the folder; the server talks to nobody without one."""
    names = x509.SubjectAlternativeName([x509.DNSName(f"site-{name}")])
    _certify(folder, f"site {name}", key, certificate, ExtendedKeyUsageOID.CLIENT_AUTH, names)


def public_key(certificate: Path) -> ec.EllipticCurvePublicKey:
    """Read the public key of a certificate."""
    try:
        key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    except (OSError, ValueError) as error:
        raise FedTailorError(f"'{certificate}' cannot be read as a certificate ({error}).") from None
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a site's private key."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise FedTailorError(f"'{path}' cannot be read as a private key ({error}).") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _certify(
    folder: Path,
    subject: str,
    key_file: Path,
    certificate_file: Path,
    use: x509.ObjectIdentifier,
    names: x509.SubjectAlternativeName,
) -> None:
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    certificate = (
        _certificate(name, authority.subject, key.public_key())
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=True)  # a site's certificate cannot pose as the server's
        .sign(private_key(folder / "ca.key"), hashes.SHA384())
    )
    _write_secret(key_file, _pem(key))
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=365 * YEARS))
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_secret(path: Path, secret: bytes) -> None:
    """Write a file that only its owner can ever read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
