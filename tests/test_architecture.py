"""The lines between the parts, held by a test and not by a reviewer; the order of the layers is import-linter's."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
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

PURE = ("core", "rules", "policies", "supervisor", "errors.py")
PURE_MAY_IMPORT = {"numpy", "swell", *sys.stdlib_module_names}
MAY_IMPORT_TORCH_DISTRIBUTED = {
    "checkpoint/shard_files.py",
    "checkpoint/sharded.py",
    "compat/fairscale/adascale.py",
    "compat/fairscale/join.py",
    "gradients/sharded.py",
    "integrations/keras/torch_processes.py",
    "runtime/*",
}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}
MOST_METHODS, MOST_ARGUMENTS = 20, 8
FACES = {  # constructors that users call, some with the signatures of other libraries
    "src/swell/job/job.py Job",
    "src/swell/compat/fairscale/adascale.py AdaScale",
    "src/swell/compat/fairscale/optim/adascale.py AdaScaleWrapper",
    "src/swell/compat/variable_batch_size/sampler.py CustomSampler",
    "src/swell/integrations/keras/elastic.py Elastic",
}
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}


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


def imported_modules(path: Path, modules: Container[str]) -> set[str]:
    """The modules of the package that a file imports; not the package of a module that is imported from it by name."""
    found = set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else node.module for name in names}
    return {name for name in found if name in modules}


def reads_environment(path: Path) -> bool:
    of_os = {"environ", "environb", "getenv", "getenvb"}
    attributes = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    return bool(of_os & attributes) or bool({f"os.{name}" for name in of_os} & set(imports(path)))


def modules_after(statement: str) -> set[str]:
    """The modules a fresh interpreter holds once it has run the statement."""
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_pure_parts_import_only_the_standard_library_and_numpy() -> None:
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


def own_privates(tree: ast.Module) -> Iterator[str]:
    """The attributes that a file's classes define: methods, annotated fields, and what is assigned to ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (member.name for member in node.body if isinstance(member, ast.FunctionDef))
            fields = [member.target for member in node.body if isinstance(member, ast.AnnAssign)]
            yield from (field.id for field in fields if isinstance(field, ast.Name))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def private_reaches(readers: Iterable[Path]) -> list[str]:
    """Where a file reads a private attribute that only classes of other files of the package define."""
    homes: dict[str, set[Path]] = defaultdict(set)
    for path, tree in TREES.items():
        for name in own_privates(tree):
            homes[name].add(path)
    reaches = []
    for path in readers:
        for node in ast.walk(TREES[path] if path in TREES else ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                of = ast.unparse(node.value)
                own = of in ("self", "cls") or of.startswith(("torch.", "dist."))  # or torch's
                if not own and homes.get(node.attr) and path not in homes[node.attr]:
                    reaches.append(f"{named(path)}:{node.lineno} {node.attr}")
    return reaches


def rings() -> list[list[str]]:
    """Groups of files that import one another, directly or through others; annotations and lazy imports count."""
    modules = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts): path for path in SOURCES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    edges = {name: imported_modules(path, modules) - {name} for name, path in modules.items()}
    reachable = {name: descendants(edges, name) for name in edges}
    groups = {frozenset(m for m in reach if name in reachable[m]) for name, reach in reachable.items()}
    return [sorted(group) for group in groups if len(group) > 1]


def descendants(edges: dict[str, set[str]], start: str) -> set[str]:
    found, todo = set(), list(edges[start])
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += edges[name]
    return found


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in TREES.items():
        yield from ((f"{named(path)} {n.name}", n) for n in ast.walk(tree) if isinstance(n, ast.ClassDef))


def methods(node: ast.ClassDef) -> list[str]:
    """A class's methods; not those that Python calls, nor properties, which only give a figure."""
    functions = [member for member in node.body if isinstance(member, ast.FunctionDef)]
    figures = [
        f
        for f in functions
        if any("property" in ast.unparse(d) or ".setter" in ast.unparse(d) for d in f.decorator_list)
    ]
    return [f.name for f in functions if f not in figures and not f.name.startswith("__")]


def test_no_file_reaches_into_the_private_attributes_of_another() -> None:
    assert private_reaches(SOURCES) == []


def test_tests_and_examples_reach_no_private_attribute_of_the_job() -> None:
    names = {name for path in SOURCES if path.parent.name == "job" for name in own_privates(TREES[path])}
    names -= {name for path in SOURCES if path.parent.name != "job" for name in own_privates(TREES[path])}
    strangers = [path for path in PYTHON_FILES if path.relative_to(ROOT).parts[0] in ("tests", "examples")]
    assert [reach for reach in private_reaches(strangers) if reach.split()[-1] in names] == []


def test_files_that_import_one_another_are_three_at_most() -> None:
    assert [ring for ring in rings() if len(ring) > 3] == []


def test_a_class_has_at_most_twenty_methods() -> None:
    assert {name: len(methods(node)) for name, node in classes() if len(methods(node)) > MOST_METHODS} == {}


def test_a_part_is_made_from_at_most_eight_things() -> None:
    """Faces are excepted: what a user gives to them is theirs to leave out."""
    many = {}
    for name, node in classes():
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__" and name not in FACES:
                count = len([*member.args.posonlyargs, *member.args.args, *member.args.kwonlyargs]) - 1
                if count > MOST_ARGUMENTS:
                    many[name] = count
    assert many == {}


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
        "import swell.checkpoint.disk, swell.checkpoint.hidden_folders, swell.checkpoint.manifest",
        "import swell.integrations.keras.array_store, swell.integrations.keras.step_sequence",
    ],
)
def test_torch_is_not_imported_before_it_is_needed(statement: str) -> None:
    assert not {"torch", "matplotlib"} & modules_after(statement)
