"""What all verbs have in common: help, JSON, exit statuses, errors in one line, and starting quickly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cachekit import errors
from cachekit.cli import app
from cachekit.cli.exit_codes import MEANINGS, ExitCode
from cachekit.cli.output import reporting
from tests.unit.cli.homes import Home, run

ROOT = Path(__file__).parents[3]
VERBS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
OF_THE_STORE = ("coverage", "gc", "ls", "rebuild", "verify")


def test_help_lists_the_verbs_and_the_exit_statuses() -> None:
    """`cachekit --help` is where people look first."""
    answer = run("--help")

    assert answer.code == 0
    assert all(f" {verb} " in answer.out for verb in VERBS)
    assert all(f"{code.value}  {meaning[:30]}" in answer.out for code, meaning in MEANINGS.items())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_documents_json_and_the_exit_statuses(verb: str) -> None:
    """Scripts can be written from `--help` alone."""
    answer = run(verb, "--help")

    assert answer.code == 0
    assert "--json" in answer.out
    assert "Exit status:" in answer.out


def test_every_exit_status_has_one_meaning() -> None:
    """No status is used without being documented."""
    assert set(ExitCode) == set(MEANINGS)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigurationError("x"), 2),
        (errors.UnsupportedError("x"), 2),
        (errors.NotFoundError("x"), 3),
        (errors.CorruptError("x"), 4),
        (errors.NewerSchemaError("x"), 4),
        (errors.StoreError("x"), 4),
        (errors.ManifestError("x"), 4),
        (errors.TrustError("x"), 5),
        (errors.RollbackError("x"), 5),
        (ValueError("x"), 70),
    ],
)
def test_errors_have_the_status_that_is_documented(error: Exception, code: int) -> None:
    """Each branch of the exception tree has its own exit status."""
    assert ExitCode.of(error) == code


@pytest.mark.parametrize("verb", OF_THE_STORE)
def test_a_folder_that_is_not_there_is_as_good_as_an_empty_one(verb: str, home: Home) -> None:
    """The first thing people run is `ls` on nothing; it is no error, and looking makes no folder."""
    answer = home.run(verb, "--json")

    assert answer.code == 0
    assert answer.json["dir"] == str(home.dir)
    assert not home.dir.exists()


@pytest.mark.parametrize("verb", OF_THE_STORE)
def test_an_empty_folder_is_fine(verb: str, home: Home) -> None:
    """A fresh CACHEKIT_DIR is no error for anybody."""
    home.dir.mkdir()

    answer = home.run(verb)

    assert answer.code == 0
    assert answer.err == ""


@pytest.mark.parametrize("verb", [(name,) for name in OF_THE_STORE] + [("show", "ab"), ("explain", "ab")])
def test_a_folder_that_cannot_be_read_is_status_4(verb: tuple[str, ...], home: Home) -> None:
    """A store that is there and cannot be read is never reported as empty: one line with the path."""
    (home.dir / "store").mkdir(parents=True)
    (home.dir / "store" / "local").write_text("a file where a folder should be")

    answer = home.run(*verb, "--json")

    assert answer.code == 4
    assert answer.err.startswith("store: ")
    assert str(home.dir) in answer.err
    assert answer.err.count("\n") == 1
    assert answer.json["error"]["code"] == "store"
    assert answer.json["error"]["exit_status"] == 4


def test_a_folder_that_others_can_write_is_refused(stocked: Home) -> None:
    """Whoever can plant files in the store could plant code."""
    (stocked.dir / "store" / "local").chmod(0o777)

    answer = stocked.run("ls")

    assert answer.code == 4
    assert "chmod 700" in answer.err


def test_a_wrong_setting_is_status_2(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt environment variable's value is refused with the allowed ones."""
    monkeypatch.setenv("CACHEKIT_MODE", "fast")

    answer = home.run("ls", "--json")

    assert answer.code == 2
    assert "readonly" in answer.err
    assert answer.json["error"]["code"] == "configuration"


def test_a_wrong_option_is_status_2(home: Home) -> None:
    """An option that does not exist is told apart from anything a verb could find."""
    assert home.run("ls", "--fast").code == 2
    assert home.run("list").code == 2


def test_a_variable_that_nothing_reads_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt variable name is noticed, and does not get into the JSON."""
    monkeypatch.setenv("CACHEKIT_DIRECTORY", "/elsewhere")

    answer = home.run("ls", "--json")

    assert "CACHEKIT_DIRECTORY" in answer.err
    assert answer.json["bundles"] == []


def test_the_folder_comes_from_the_environment(stocked: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `--dir` and `--namespace` the variables count."""
    monkeypatch.setenv("CACHEKIT_DIR", str(stocked.dir))
    assert len(run("ls", "--json").json["bundles"]) == 1

    monkeypatch.setenv("CACHEKIT_NAMESPACE", "other")
    assert run("ls", "--json").json["bundles"] == []
    assert len(run("ls", "--json", "--namespace", "local").json["bundles"]) == 1


def test_a_namespace_that_cannot_be_one_is_status_2(home: Home) -> None:
    """A namespace becomes part of a path, so it is checked before anything is opened."""
    assert home.run("ls", "--namespace", "../keys").code == 2


def test_a_traceback_is_shown_only_with_debug(stocked: Home) -> None:
    """People get a line; whoever debugs gets the rest, and the same status."""
    quiet, loud = stocked.run("show", "zz"), stocked.run("show", "zz", "--debug")

    assert quiet.code == loud.code == 3
    assert "Traceback" not in quiet.err
    assert "Traceback" in loud.err


def test_a_defect_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Even an exception that nobody expected ends in a line, JSON and a status of its own."""
    with pytest.raises(typer.Exit) as ended, reporting(json=True, debug=False):
        raise ZeroDivisionError("division\nby zero")

    told = capsys.readouterr()
    assert ended.value.exit_code == 70
    assert told.err == "defect: ZeroDivisionError: division by zero (--debug shows where)\n"
    assert json.loads(told.out)["error"]["code"] == "defect"


def test_version() -> None:
    """`--version` names the distribution, because the import's name belongs to somebody else."""
    answer = run("--version")

    assert answer.code == 0
    assert answer.out.startswith("torch-cachekit ")


def test_the_command_line_starts_without_torch_and_sqlalchemy() -> None:
    """Help and listing must be quick: what takes seconds to import waits for a verb that needs it."""
    script = (
        "import sys, cachekit.cli\n"
        "from typer.testing import CliRunner\n"
        "CliRunner().invoke(cachekit.cli.app, ['--help'])\n"
        "heavy = {'torch', 'sqlalchemy', 'alembic', 'cryptography', 'zstandard', 'diffusers', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_the_real_process_prints_json_and_nothing_else(stocked: Home) -> None:
    """`python -m cachekit VERB --json`, as a script calls it: stdout is one document, the status is the process's."""
    bundle = stocked.run("ls", "--json").json["bundles"][0]
    stocked.blob(stocked.fetch(bundle["id"]).entries[0].stored_digest).unlink()

    done = subprocess.run(
        [sys.executable, "-m", "cachekit", "verify", "--json", "--dir", str(stocked.dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr == ""
    assert len(json.loads(done.stdout)["problems"]) == 1


def test_a_reader_that_goes_away_ends_it_quietly(stocked: Home) -> None:
    """`cachekit show ID --json | head -1` shows a line, not a traceback."""
    (found,) = stocked.run("ls", "--json").json["bundles"]
    command = f'"{sys.executable}" -m cachekit show {found["id"]} --json --dir "{stocked.dir}" | head -1'

    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr
