"""Certificates for mutual TLS between the roles, for machines without an authority: `make certs`.

python -m deploy.tls.certificates FOLDER [HOST ...]    # hosts: names and addresses under which the teachers are reached

Writes ca.crt, tls.crt and tls.key, named as cert-manager names them. The key of the authority is not kept: to add a
host, make all of them again.
"""

import argparse
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from calopd.core.environment import TLS_CA, TLS_CERT, TLS_KEY

FILES = {TLS_CA.name: "ca.crt", TLS_CERT.name: "tls.crt", TLS_KEY.name: "tls.key"}
"""Variable of the services -> its file."""
HOSTS = ("localhost", "127.0.0.1", "teacher")
DAYS = 365


def make_certificates(folder: Path, hosts: tuple[str, ...] = HOSTS, days: int = DAYS) -> dict[str, str]:
    """Write an authority and one certificate for all roles; return the variables that name them."""
    now = datetime.datetime.now(datetime.UTC)
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = _name("calopd authority")

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder(
            issuer, subject, public, x509.random_serial_number(), now, now + datetime.timedelta(days=days)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    folder.mkdir(parents=True, exist_ok=True)
    paths = {variable: folder / file for variable, file in FILES.items()}
    paths[TLS_CA.name].write_bytes(signed(issuer, authority.public_key(), x509.BasicConstraints(True, 0)))
    paths[TLS_CERT.name].write_bytes(
        signed(
            _name("calopd role"),
            key.public_key(),
            x509.BasicConstraints(False, None),
            x509.SubjectAlternativeName([_alternative(host) for host in hosts]),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        )
    )
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    paths[TLS_KEY.name].touch(mode=0o600)
    paths[TLS_KEY.name].write_bytes(key.private_bytes(*pem))
    return {variable: str(path.resolve()) for variable, path in paths.items()}


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.tls.certificates", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("hosts", nargs="*", default=list(HOSTS))
    arguments = parser.parse_args()
    for variable, file in make_certificates(arguments.folder, tuple(arguments.hosts)).items():
        print(f"export {variable}={file}")


if __name__ == "__main__":
    main()
