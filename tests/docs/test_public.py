"""The page on what is public lists every public name, and no other."""

from __future__ import annotations

import importlib
import pkgutil
import re

import swell
from tests.docs.pages import PAGES, ROOT, code_in, section, tables

PAGE = ROOT / "docs" / "public.md"
GUIDES = [page for page in PAGES if "decisions" not in page.parts and page != PAGE]
OF_OTHERS = (
    "swell.keras",
    "swell.transformers",
    "swell.accelerate",
    "swell.lightning",
    "swell.ray",
)  # need packages that are not here
MODULES = {
    name: code_in(text) for names, text in tables(section(PAGE, "## Public modules"))[0] for name in code_in(names)
}


def test_the_page_lists_the_names_of_the_package() -> None:
    listed = [name for table in tables(PAGE.read_text()) for row in table for name in code_in(row[0])]
    names = [name.removeprefix("swell.") for name in listed if not name.startswith("swell.compat.")]
    assert len(names) == len(set(names))
    assert set(names) == set(swell.__all__)


def test_every_name_that_a_module_is_said_to_offer_can_be_imported_from_it() -> None:
    for module, names in MODULES.items():
        if not module.startswith("swell.compat.") and module not in OF_OTHERS:
            home = importlib.import_module(module)
            assert [name for name in names if name.isidentifier() and not hasattr(home, name)] == [], module


def test_every_module_is_said_to_be_public_or_private() -> None:
    private = code_in(section(PAGE, "## Private modules").split(" are private")[0])
    modules = {f"swell.{module.name}" for module in pkgutil.iter_modules(swell.__path__)} - {"swell.__main__"}
    assert sorted([*private, *{re.sub(r"(swell\.compat).*", r"\1", name) for name in MODULES}]) == sorted(modules)


def test_pages_send_users_to_public_names_only() -> None:
    private = code_in(section(PAGE, "## Private modules").split(" are private")[0])
    strangers: dict[str, set[str]] = {}
    for page in GUIDES:
        for module, name in re.findall(r"\b(swell\.[a-z]+)\.(\w+)", page.read_text()):
            public = getattr(importlib.import_module(module), "__all__", None) if module in MODULES else None
            known = module not in private and (public is None or name in public)
            if not known and f"{module}.{name}" != "swell.demo.digits":
                strangers.setdefault(str(page.relative_to(ROOT)), set()).add(f"{module}.{name}")
    assert strangers == {}
