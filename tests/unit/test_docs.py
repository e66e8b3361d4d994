"""The documents say what is there: every setting, command and make target, working links, examples that fit."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import cachekit
from cachekit.settings import VARIABLES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RECORDS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_readme_starts_with_the_two_commands() -> None:
    """The first thing a reader can copy is the demonstration, the second the tests."""
    commands = [line.split("#")[0].strip() for line in _blocks(ROOT / "README.md", "sh")[0].splitlines()]

    assert commands == ["make demo", "make test"]
    assert README.index("make demo") < 100


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_readme_has_a_row_for_every_variable(variable: cachekit.settings.Variable) -> None:
    """Name, default and meaning of each environment variable are in the README as they are in the code."""
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `{variable.name}` | ")]
    plain = row.replace("`", "")

    assert f"| {variable.default} |" in plain
    assert variable.meaning.split(":", maxsplit=1)[0] in plain
    for word in variable.allowed.split(", ") if variable.field in ("mode", "save") else []:
        assert f"`{word}`" in row


def test_no_document_speaks_of_a_variable_that_is_not_read() -> None:
    """A CACHEKIT_ variable named in any document exists."""
    known = {variable.name for variable in VARIABLES}
    for path in DOCUMENTS:
        named = set(re.findall(r"\bCACHEKIT_[A-Z_]+[A-Z]\b", path.read_text(encoding="utf-8")))
        assert named <= known, _relative(path)


def test_readme_has_a_row_for_every_command() -> None:
    """Each verb of the command line is in the README's table, and no other."""
    import typer.main

    from cachekit.cli import app

    verbs = set(typer.main.get_group(app).commands)
    rows = set(re.findall(r"^\| `cachekit ([a-z-]+)`[^|]* \|", README, re.MULTILINE))

    assert rows == verbs


def test_readme_has_a_row_for_every_exit_status() -> None:
    """What scripts may rely on is in the README word for word."""
    from cachekit.cli.exit_codes import MEANINGS

    rows = re.findall(r"^\| (\d+) \| (.*) \|$", README, re.MULTILINE)

    assert rows == [(str(code.value), meaning) for code, meaning in MEANINGS.items()]


def test_make_targets_in_documents_exist() -> None:
    """A document sends nobody to a target that is not there, and `make help` lists those people need."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    listed = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    for path in DOCUMENTS:
        named = set(re.findall(r"(?:^|`)make ([a-z]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= targets, _relative(path)

    assert {"help", "demo", "test", "lint", "bench", "clean"} <= listed


@pytest.mark.parametrize("path", DOCUMENTS, ids=_relative)
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file of the repository, every anchor a heading of the same page."""
    text = path.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("#"):
            assert link[1:] in headings, link
        elif "://" not in link and path.name != "template.md":
            assert (path.parent / link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=_relative)
def test_examples_use_what_exists(path: Path) -> None:
    """Each Python example is Python, and each name it takes from cachekit is there."""
    for block in _blocks(path, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "cachekit":
                assert hasattr(cachekit, node.attr), node.attr


def test_every_decision_is_indexed_and_complete() -> None:
    """Each record is in the index, has all parts of the template, and admits what it costs."""
    index = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    template = (ROOT / "docs" / "adr" / "template.md").read_text(encoding="utf-8")
    parts = re.findall(r"^## .*$", template, re.MULTILINE)
    for path in RECORDS:
        text = path.read_text(encoding="utf-8")
        assert f"[{path.name[:4]}]({path.name})" in index, path.name
        assert re.findall(r"^## .*$", text, re.MULTILINE) == parts, path.name
        assert "* Bad: " in text, path.name


def test_changelog_is_about_this_version() -> None:
    """The newest heading of the changelog is the version that the package says it is."""
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert headings[0] == cachekit._version.__version__
