"""The bill of materials and the audit, made from the lock files."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from requirements import audit, sbom
from requirements.pins import Pin, read


def test_the_bill_of_materials_has_every_pin_with_its_hashes(tmp_path):
    for file, lock in zip(sbom.write(tmp_path), sbom.LOCKS.values(), strict=True):
        bill = json.loads(file.read_text())
        assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
        components = {component["name"]: component for component in bill["components"]}
        assert {name: component["version"] for name, component in components.items()} == {
            name: pin.version for name, pin in read(lock).items()
        }
        assert all(component["hashes"] for component in components.values()), "every lock has hashes"
        assert components["pytest"]["scope"] == "optional"
        assert components["torch"]["scope"] == "required"


@pytest.mark.parametrize("lock", audit.LOCKS)
def test_every_pin_of_a_lock_has_a_hash(lock):
    assert all(sbom.HASH.search(pin.text) for pin in read(lock).values())


class Database(BaseHTTPRequestHandler):
    """Knows one vulnerability."""

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        bad = {"package": {"name": "torch", "ecosystem": "PyPI"}, "version": "2.13.0"}
        results = [{"vulns": [{"id": "GHSA-x"}]} if query == bad else {} for query in queries]
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def test_the_audit_names_packages_with_known_vulnerabilities():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Database)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        pins = [Pin("torch", "2.13.0+cpu", ""), Pin("numpy", "2.0", "")]
        found = audit.known_vulnerabilities(pins, f"http://127.0.0.1:{server.server_port}/")
        assert found == {"torch==2.13.0": ["GHSA-x"]}
    finally:
        server.shutdown()


def test_an_audit_without_the_database_does_not_pass(monkeypatch, capsys):
    monkeypatch.setattr(audit, "known_vulnerabilities", lambda pins: (_ for _ in ()).throw(OSError("no route")))
    assert audit.main() == 2
    assert "nothing was audited" in capsys.readouterr().err
