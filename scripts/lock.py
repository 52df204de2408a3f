"""Writes requirements/: which files edge-sdk installs, with their hashes, as a lock, as lists for pip, and as an SBOM.

Called by scripts/lock.  The only network access is pip's own: `pip install --dry-run --report`, which downloads
metadata and no packages.  torch is left out: its owner chooses a build (CPU, CUDA, a Jetson's own), which no one list
of hashes can know; constraints.txt holds its version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
LOCK, SBOM = FOLDER / "lock.json", FOLDER / "sbom.cdx.json"
PYTHONS = ("3.11", "3.13")
"""Those of Raspberry Pi OS 12 and 13."""
MACHINES = ("aarch64", "x86_64")
GLIBCS = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_26", "manylinux_2_27", "manylinux_2_28")
EXTRAS = ("base", "secure", "onnx", "coordinator", "page")
"""The installations that have a list; base: without any extra."""
LEFT_OUT = frozenset({"torch", "torchvision"})


def wanted(extra: str) -> list[Requirement]:
    """Return what an installation asks for: the base, and what its extra adds, without LEFT_OUT."""
    project = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*_flat(project["dependencies"], project), *_flat(_extra(extra, project), project)]


def _extra(extra: str, project: Mapping[str, Any]) -> list[str]:
    found: list[str] = project["optional-dependencies"].get(extra, [])
    return found


def _flat(lines: Iterable[str], project: Mapping[str, Any]) -> Iterator[Requirement]:
    """Yield requirements with those on edge-sdk's own extras resolved."""
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == project["name"]:
            for extra in sorted(requirement.extras):
                yield from _flat(_extra(extra, project), project)
        elif requirement.name not in LEFT_OUT:
            yield requirement


def applies(requirement: Requirement, python: str, machine: str) -> bool:
    """Return whether a requirement is one on this Python and machine, under Linux."""
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}
    environment |= {"platform_machine": machine, "sys_platform": "linux", "platform_system": "Linux", "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def resolved(extra: str, python: str, machine: str) -> list[dict[str, Any]]:
    """Ask pip what it would install there: name, version, file, hash, licence and requirements of each package."""
    asked = [f"{each.name}{each.specifier}" for each in wanted(extra) if applies(each, python, machine)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--only-binary", ":all:", "--python-version", python, "--target", folder, "--report", str(report)]
        command += [part for glibc in GLIBCS for part in ("--platform", f"{glibc}_{machine}")]
        environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
        subprocess.run([*command, *asked], env=environment, check=True, stderr=subprocess.DEVNULL)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [_package(each) for each in found]


def _package(entry: Mapping[str, Any]) -> dict[str, Any]:
    metadata, download = entry["metadata"], entry["download_info"]
    return {
        "name": canonicalize_name(metadata["name"]),
        "version": metadata["version"],
        "file": download["url"].rsplit("/", 1)[-1],
        "sha256": download["archive_info"]["hashes"]["sha256"],
        "license": _licence(metadata),
        "requires": sorted({canonicalize_name(Requirement(each).name) for each in metadata.get("requires_dist", ())}),
    }


def _licence(metadata: Mapping[str, Any]) -> str:
    """Return the licence in the words of the package: its expression, its classifier, or a short text."""
    told = metadata.get("license_expression") or ""
    classifiers = [each.rsplit(" :: ", 1)[-1] for each in metadata.get("classifier", ()) if "License ::" in each]
    text = (metadata.get("license") or "").strip().split("\n")[0]
    return told or next(iter(classifiers), "") or (text if len(text) <= 64 else "")


def lock() -> dict[str, Any]:
    """Resolve every installation for every Python and machine."""
    packages: dict[str, dict[str, Any]] = {}
    lists: dict[str, dict[str, list[str]]] = {}
    for extra in EXTRAS:
        for python in PYTHONS:
            for machine in MACHINES:
                print(f"{extra}, Python {python}, {machine}", file=sys.stderr)
                found = resolved(extra, python, machine)
                place = lists.setdefault(extra, {})
                place[f"{python}-{machine}"] = sorted(f"{each['name']}=={each['version']}" for each in found)
                for each in found:
                    key = f"{each['name']}=={each['version']}"
                    known = packages.setdefault(
                        key, {"license": each["license"], "requires": each["requires"], "files": {}}
                    )
                    known["files"][each["file"]] = each["sha256"]
    for known in packages.values():
        known["files"] = dict(sorted(known["files"].items()))
    direct = {extra: sorted({canonicalize_name(each.name) for each in wanted(extra)}) for extra in lists}
    return {"direct": direct, "lists": lists, "packages": dict(sorted(packages.items()))}


def requirements(locked: Mapping[str, Any], extra: str) -> str:
    """Return the list of an installation for `pip install --require-hashes -r`."""
    places: Mapping[str, list[str]] = locked["lists"][extra]
    lines = [
        f"# Written by scripts/lock: edge-sdk, {extra}; Python {' and '.join(PYTHONS)} on {' and '.join(MACHINES)}.\n"
    ]
    for key in sorted({key for keys in places.values() for key in keys}):
        marker = _marker({place for place, keys in places.items() if key in keys}, set(places))
        hashes = sorted(locked["packages"][key]["files"].values())
        lines.append(" \\\n    ".join([f"{key}{marker}", *(f"--hash=sha256:{each}" for each in hashes)]) + "\n")
    return "".join(lines)


def _marker(places: set[str], everywhere: set[str]) -> str:
    """Return the condition under which a version is one of these places'; empty: in all."""
    if places == everywhere:
        return ""
    pairs = (place.split("-") for place in sorted(places))
    return " ; " + " or ".join(
        f"(python_version == '{python}' and platform_machine == '{machine}')" for python, machine in pairs
    )


def sbom(locked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the software bill of materials in the form CycloneDX 1.5, the same for the same lock."""
    project = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = f"pkg:pypi/{project['name']}@{project['version']}"
    refs = {key: "pkg:pypi/" + key.replace("==", "@") for key in locked["packages"]}
    by_name: dict[str, list[str]] = {}
    for key, ref in refs.items():
        by_name.setdefault(key.partition("==")[0], []).append(ref)
    direct = {name for names in locked["direct"].values() for name in names}
    graph = [{"ref": ours, "dependsOn": sorted(ref for name in direct for ref in by_name.get(name, ()))}]
    graph += [
        {"ref": refs[key], "dependsOn": sorted(ref for name in known["requires"] for ref in by_name.get(name, ()))}
        for key, known in locked["packages"].items()
    ]
    components = [_component(key, refs[key], known) for key, known in locked["packages"].items()]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([ours, components, graph], sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": ours,
                "name": project["name"],
                "version": project["version"],
                "purl": ours,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": graph,
    }


def _component(key: str, ref: str, known: Mapping[str, Any]) -> dict[str, Any]:
    name, _, version = key.partition("==")
    told = [{"license": {"name": known["license"]}}] if known["license"] else []
    return {
        "type": "library",
        "bom-ref": ref,
        "name": name,
        "version": version,
        "purl": ref,
        **({"licenses": told} if told else {}),
        "hashes": [{"alg": "SHA-256", "content": each} for each in sorted(known["files"].values())],
    }


def contents(locked: Mapping[str, Any]) -> dict[Path, str]:
    """Return every file that follows from the lock."""
    found = {FOLDER / f"{extra}.txt": requirements(locked, extra) for extra in locked["lists"]}
    return found | {SBOM: json.dumps(sbom(locked), indent=1) + "\n"}


def main(words: list[str]) -> None:
    """Write requirements/."""
    if words not in ([], ["--offline"]):
        sys.exit("usage: scripts/lock [--offline]")
    locked = json.loads(LOCK.read_text(encoding="utf-8")) if words else lock()
    FOLDER.mkdir(exist_ok=True)
    LOCK.write_text(json.dumps(locked, indent=1) + "\n", encoding="utf-8")
    for path, text in contents(locked).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
