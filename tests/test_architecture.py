"""The lines between the parts, held by a test and not by a reviewer; the order of the layers is import-linter's."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "swell"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PYTHON_FILES = [
    path for folder in ("src", "tests", "examples", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))
]

PURE = ("core", "rules", "policies", "simulator", "errors.py")
PURE_MAY_IMPORT = {"numpy", "scipy", "swell", *sys.stdlib_module_names}
MAY_IMPORT_TORCH_DISTRIBUTED = {
    "checkpoint/sharded.py",
    "gradients/overlap.py",
    "gradients/sharded.py",
    "integrations/keras/torch_world.py",
    "runtime/*",
}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}
MOST_LINES = 400


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, at its top or inside a function, by its whole name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reads_environment(path: Path) -> bool:
    of_os = {"environ", "environb", "getenv", "getenvb"}
    attributes = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    return bool(of_os & attributes) or bool({f"os.{name}" for name in of_os} & set(imports(path)))


def modules_after(statement: str) -> set[str]:
    """The modules a fresh interpreter holds once it has run the statement."""
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    "path", [path for part in PURE for path in SOURCES if path.is_relative_to(PACKAGE / part)], ids=named
)
def test_pure_parts_import_only_the_standard_library_numpy_and_scipy(path: Path) -> None:
    assert {name.partition(".")[0] for name in imports(path)} <= PURE_MAY_IMPORT


def test_torch_distributed_is_imported_in_named_files_only() -> None:
    users = {
        path.relative_to(PACKAGE)
        for path in SOURCES
        if any(f"{name}.".startswith("torch.distributed.") for name in imports(path))
    }
    strangers = {
        user.as_posix() for user in users if not any(user.match(allowed) for allowed in MAY_IMPORT_TORCH_DISTRIBUTED)
    }
    assert not strangers, "hand these files a Collective instead (swell.core.protocols)"


def test_environment_variables_are_read_in_runtime_only() -> None:
    readers = {path.relative_to(PACKAGE) for path in SOURCES if reads_environment(path)}
    assert {reader.as_posix() for reader in readers if reader.parts[0] != "runtime"} == set()


@pytest.mark.parametrize("path", PYTHON_FILES, ids=named)
def test_a_file_holds_one_idea_and_is_named_after_it(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= MOST_LINES, f"{lines} lines: split it where its first line would need an 'and'"
    assert not NAMES_THAT_SAY_NOTHING & {part.partition(".")[0] for part in path.relative_to(ROOT).parts}


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert len(docstring.split()) > 1, "the first line of a module says what it holds"


@pytest.mark.parametrize(
    "statement", ["import swell", "import swell.core", "import swell.rules, swell.policies", "import swell.cli"]
)
def test_torch_is_not_imported_before_it_is_needed(statement: str) -> None:
    assert not {"torch", "matplotlib"} & modules_after(statement)
