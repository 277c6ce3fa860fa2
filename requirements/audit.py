"""Ask the OSV database for known vulnerabilities of every pinned package: `make audit`. Needs the internet.

Exit code 0: none is known. 1: some are, one line each. 2: the database was not reached, nothing is known.
"""

import json
import sys
import urllib.request
from collections.abc import Iterable

from requirements.pins import Pin, read

DATABASE = "https://api.osv.dev/v1/querybatch"
LOCKS = ("cpu.lock", "gpu.lock", "deploy.lock")
TIMEOUT_SECONDS = 60.0


def known_vulnerabilities(pins: Iterable[Pin], database: str = DATABASE) -> dict[str, list[str]]:
    """`name==version` -> ids of its advisories; raises OSError if the database cannot be reached."""
    wanted = sorted({(pin.name, pin.version.partition("+")[0]) for pin in pins})
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in wanted]
    request = urllib.request.Request(
        database, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        results = json.load(answer)["results"]
    return {
        f"{name}=={version}": sorted(found["id"] for found in result["vulns"])
        for (name, version), result in zip(wanted, results, strict=True)
        if result.get("vulns")
    }


def main() -> int:
    pins = [pin for lock in LOCKS for pin in read(lock).values()]
    try:
        found = known_vulnerabilities(pins)
    except OSError as error:
        print(f"error: {DATABASE} cannot be reached ({error}): nothing was audited", file=sys.stderr)
        return 2
    for package, advisories in found.items():
        print(f"{package}: {', '.join(advisories)}")
    print(f"{len(pins)} pins of {', '.join(LOCKS)}: {len(found)} packages with known vulnerabilities")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
