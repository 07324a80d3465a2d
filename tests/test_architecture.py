"""The lines between the parts, held by a test and not by a reviewer; the order of the layers is import-linter's."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "swell"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PYTHON_FILES = [
    path
    for folder in ("src", "tests", "examples", "benchmarks", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
]

PURE = ("core", "rules", "policies", "simulator", "errors.py")
PURE_MAY_IMPORT = {"numpy", "scipy", "swell", *sys.stdlib_module_names}
MAY_IMPORT_TORCH_DISTRIBUTED = {
    "checkpoint/shard_files.py",
    "checkpoint/sharded.py",
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


def test_pure_parts_import_only_the_standard_library_numpy_and_scipy() -> None:
    pure = [path for path in SOURCES if path.relative_to(PACKAGE).parts[0] in PURE]
    imported = {named(path): {name.partition(".")[0] for name in imports(path)} for path in pure}
    assert {name: tops - PURE_MAY_IMPORT for name, tops in imported.items() if tops - PURE_MAY_IMPORT} == {}


def test_torch_distributed_is_imported_in_named_files_only() -> None:
    users = [path for path in SOURCES if any(f"{name}.".startswith("torch.distributed.") for name in imports(path))]
    names = [path.relative_to(PACKAGE).as_posix() for path in users]
    strangers = [name for name in names if not any(fnmatch(name, allowed) for allowed in MAY_IMPORT_TORCH_DISTRIBUTED)]
    assert strangers == [], "hand these files a Collective instead (swell.core.protocols)"


def test_environment_variables_are_read_where_processes_start_or_begin_only() -> None:
    readers = [path for path in SOURCES if reads_environment(path)]
    homes = ("runtime", "supervisor")
    assert [named(path) for path in readers if path.relative_to(PACKAGE).parts[0] not in homes] == []


def test_a_file_is_short_enough_to_hold_one_idea() -> None:
    lengths = {named(path): path.read_text().count("\n") for path in PYTHON_FILES}
    too_long = {name: lines for name, lines in lengths.items() if lines > MOST_LINES}
    assert too_long == {}, "split them where the first line would need an 'and'"


def test_a_file_is_named_after_its_idea() -> None:
    parts = {named(path): {part.partition(".")[0] for part in path.relative_to(ROOT).parts} for path in PYTHON_FILES}
    assert [name for name, words in parts.items() if words & NAMES_THAT_SAY_NOTHING] == []


def test_every_module_says_what_it_is_for() -> None:
    docstrings = {named(path): ast.get_docstring(ast.parse(path.read_text())) or "" for path in SOURCES}
    assert [name for name, text in docstrings.items() if len(text.split()) < 2] == []


@pytest.mark.parametrize(
    "statement",
    [
        "import swell",
        "import swell.core",
        "import swell.rules, swell.policies",
        "import swell.cli",
        "import swell.supervisor.supervisor",
    ],
)
def test_torch_is_not_imported_before_it_is_needed(statement: str) -> None:
    assert not {"torch", "matplotlib"} & modules_after(statement)
