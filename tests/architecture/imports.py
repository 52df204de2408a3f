"""Who may import what, found by reading the source: rules as data, and a reader that applies them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("edge_sdk", "coordinator", "edge_sim", "firmware_profiles")

NEUTRAL = ("protocol", "objectives", "reductions", "privacy", "methods")
"""The rooms of edge_sdk that both sides share, in order: each imports only those before it, itself, and these:"""
BELOW = ("errors", "data", "arrays", "class_names", "given_arrays", "sample_kind", "lazy")
COORDINATOR_MAY = (
    *NEUTRAL,
    *BELOW,
    "identity",
    "transport",
    "models",
    "public_set",
    "boards",
    "durable",
    "at_rest",
    "loading",
    "terminal",
    "toml",
    "version",
)
"""The role-neutral parts of edge_sdk."""
COMMANDS = "coordinator/commands.py"
"""Registers sub-commands, and for that may know the type that edge_sdk.cli collects."""
SHOWN_BY = (COMMANDS, "coordinator/deploy.py", "coordinator/results/")
"""The only places in the coordinator that may import coordinator.results: the core does not know who shows what it counts."""
ONLY_IN = {
    "torch": ("torch_",),
    "torchvision": ("torch_",),
    "onnx": ("onnx_",),
    "onnxruntime": ("onnx_",),
    "paho": ("edge_sdk/transport/mqtt/transport.py", "paho_"),
    "cryptography": ("crypto_",),
    "ray": ("ray_",),
}
"""Package -> the files, or the beginnings of the file names, that may import it."""
LAZY = (
    *(
        "sklearn",
        "threadpoolctl",
        "matplotlib",
        "rich",
        "amqtt",
        "PIL",
        "tomli_w",
        "starlette",
        "uvicorn",
        "jinja2",
        "shtab",
    ),
    *("datasets", "huggingface_hub", "optuna", "pandas", "tensorboardX", "wandb", "mlflow", "prometheus_client"),
)
"""Packages that are imported inside functions, except in files whose names say so."""
HEAVY = (*ONLY_IN, *LAZY)


@dataclass(frozen=True)
class Import:
    """One imported name: the dotted module, or module.name for `from module import name`."""

    name: str
    line: int
    eager: bool
    """Runs when the file is imported."""
    late: bool
    """Stands in a function."""


@cache
def imports(source: str) -> tuple[Import, ...]:
    """All imports of a file, wherever they stand; each file is parsed once, for all tests."""
    return tuple(_walk(ast.parse(source), eager=True, late=False))


def _walk(node: ast.AST, *, eager: bool, late: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, eager, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            yield from (Import(f"{base}.{alias.name}", child.lineno, eager, late) for alias in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _walk(ast.Module(child.body, []), eager=False, late=late)
            yield from _walk(ast.Module(child.orelse, []), eager=eager, late=late)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _walk(child, eager=eager and not function, late=late or function)


def violations(path: str, source: str) -> list[str]:
    """What a file at `path` (relative to the root, with slashes) imports against the rules."""
    return [f"{path}:{found.line}: {reason}" for found in imports(source) if (reason := _objection(path, found))]


def _objection(path: str, found: Import) -> str:
    package, name = Path(path).parts[0], Path(path).name
    top, *rest = found.name.split(".")
    if not top:
        return "relative import; write the package's name"
    if package == "edge_sdk" and top in {"coordinator", "edge_sim"}:
        return f"the device side must not know {found.name}"
    if package == "coordinator" and top == "edge_sim":
        return f"the coordinator must not know {found.name}"
    if package == "coordinator" and (top, *rest[:1]) == ("coordinator", "results") and not path.startswith(SHOWN_BY):
        return "only commands and deploy show results: coordinator.results is not for others"
    allowed = (*COORDINATOR_MAY, "__version__", *(("cli",) if path == COMMANDS else ()))
    if package == "coordinator" and top == "edge_sdk" and rest and rest[0] not in allowed:
        return f"the coordinator may import edge_sdk.{{{','.join(COORDINATOR_MAY)}}}, not {found.name}"
    room = Path(path).parts[1].removesuffix(".py") if package == "edge_sdk" else ""
    if room in NEUTRAL and top == "edge_sdk" and rest:
        may = (*NEUTRAL[: NEUTRAL.index(room) + 1], *BELOW)
        if name.startswith(("torch_", "numpy_")):  # the form of a term for a runtime
            may = (*may, "models")
        if rest[0] not in may:
            return f"{room} may import edge_sdk.{{{','.join(may)}}}, not {found.name}"
    if package == "firmware_profiles":
        return "firmware_profiles holds data only"
    homes = ONLY_IN.get(top)
    if homes is not None and path not in homes and not name.startswith(homes):
        return f"{top} belongs in {' or '.join(home + '*' * home.endswith('_') for home in homes)}"
    if top in LAZY and found.eager and top not in name:
        return f"{top} is optional: import it inside the function that needs it"
    return ""


def sources() -> Iterator[tuple[str, str]]:
    """Path and text of every source file that is there."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def light_modules(*packages: str) -> list[str]:
    """Modules that must load without any heavy package."""
    names = []
    for path, _ in sources():
        name = Path(path).name
        at_home = any(path in homes or name.startswith(homes) for homes in ONLY_IN.values())
        named_so = any(package in name for package in LAZY)
        if Path(path).parts[0] in packages and not at_home and not named_so and name != "__main__.py":
            names.append(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    return names
