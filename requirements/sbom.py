"""Write the packages of each lock file as a software bill of materials (CycloneDX 1.6, JSON): `make sbom`.

python -m requirements.sbom FOLDER
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from requirements.pins import DEVELOPMENT, HERE, Pin, read

LOCKS = {"cpu": "cpu.lock", "gpu": "gpu.lock"}
"""Kind of an image or environment -> its lock. A GPU image also has the packages of its base (base-image.txt)."""
HASH = re.compile(r"sha256:([0-9a-f]{64})")


def component(pin: Pin) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{pin.name}@{pin.version}",
        "name": pin.name,
        "version": pin.version,
        "purl": f"pkg:pypi/{pin.name}@{pin.version.replace('+', '%2B')}",
        # In a deployed image or only for work on the project.
        "scope": "optional" if pin.name in DEVELOPMENT else "required",
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in sorted(set(HASH.findall(pin.text)))],
    }


def bill_of_materials(lock: str, version: str) -> dict[str, Any]:
    """All pins of a lock file."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "calopd", "version": version, "bom-ref": "calopd"}},
        "components": [component(pin) for _, pin in sorted(read(lock).items())],
    }


def write(folder: Path) -> list[Path]:
    version = re.search(r'__version__ = "(.*)"', (HERE.parent / "calopd" / "__init__.py").read_text(encoding="utf-8"))
    assert version is not None
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, lock in LOCKS.items():
        written.append(folder / f"calopd-{kind}.cdx.json")
        written[-1].write_text(json.dumps(bill_of_materials(lock, version[1]), indent=1) + "\n", encoding="utf-8")
    return written


if __name__ == "__main__":
    for file in write(Path(sys.argv[1])):
        print(file)
