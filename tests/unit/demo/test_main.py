"""What the demonstration refuses at once, and what it says when a process of its own fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachekit.demo import main, screen
from cachekit.demo.models import DEMOS
from cachekit.errors import ConfigurationError, StoreError, UnsupportedError

ROW = {
    "name": "sdxl",
    "cold_s": 64.0,
    "warm_s": 8.0,
    "ratio": 8.0,
    "hits": 109,
    "misses": 0,
    "raw_bytes": 7_549_747,
    "stored_bytes": 512,
    "bit_identical": True,
    "shapes": ["64x64x1,cfg=true", "96x64x1,cfg=true"],
    "cxx_compiles": 0,
    "isa_probes": 0,
    "problems": [],
}


def test_an_unknown_pipeline_is_refused() -> None:
    """The refusal names the pipelines there are."""
    with pytest.raises(ConfigurationError, match="no such pipeline: flux; there are sdxl, qwen-image-gguf"):
        main.run(pipelines=["sdxl", "flux"])


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """A folder that holds something could make the cold start a warm one; what it holds stays."""
    (tmp_path / "something").touch()

    with pytest.raises(ConfigurationError, match="is not empty"):
        main.run(directory=tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A path below a file is an error of the store, with the path and the reason."""
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match=r"file/below.*Not a directory"):
        main.run(directory=tmp_path / "file" / "below")


def test_a_missing_compiler_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C++ compiler nothing is started, and the message names what was looked for."""
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(UnsupportedError, match="no-such-compiler"):
        main.run()


def test_a_missing_library_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without diffusers nothing is started, and the message says what to install."""
    monkeypatch.setattr(main, "_LIBRARIES", ("diffusers_that_nobody_has",))

    with pytest.raises(UnsupportedError, match=r"diffusers_that_nobody_has.*pip install"):
        main.run()


@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
def test_a_broken_installation_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """Where a process fails the exit status is 1, and people and programs are shown the end of its error."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "torch.py").write_text("raise RuntimeError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))

    assert main.run(directory=tmp_path / "work", as_json=as_json) == 1

    out, err = capsys.readouterr()
    assert "making pipelines with random weights" in err
    assert "build failed, exit status 1" in err
    assert "RuntimeError: a broken installation" in err
    if as_json:
        (failed,) = json.loads(out)["failed"]
        assert (failed["process"], failed["why"]) == ("build", "exit status 1")
        assert "a broken installation" in failed["stderr"]
    else:
        assert out == ""


def test_the_temporary_folder_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --dir or --keep nothing is left, even when a process failed."""
    broken = tmp_path / "path"
    broken.mkdir()
    (broken / "torch.py").write_text("raise RuntimeError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert main.run() == 1

    assert [path.name for path in tmp_path.iterdir()] == ["path"]


def test_the_table_has_what_people_compare(capsys: pytest.CaptureFixture[str]) -> None:
    """Cold, warm and ratio stand in a table, and below it, in a sentence, what they mean and for which shapes."""
    main._draw(DEMOS, main.Answer(rows=[ROW]))

    out = capsys.readouterr().out
    for text in ("64.0 s", "8.0 s", "8.0 ×", "109", "512 B", "yes", "96x64x1,cfg=true"):
        assert text in out
    assert "instead of 64.0 s" in out


def test_the_table_fits_a_small_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 80 columns nothing is cut."""
    monkeypatch.setattr(screen, "PLAIN_WIDTH", 80)
    screen.table([{**ROW, "name": demo.name, "stored_bytes": 1023 * 1024} for demo in DEMOS])

    out = capsys.readouterr().out
    assert "…" not in out
    for text in ("qwen-image-gguf", "identical", "64.0 s", "1023.0 KiB", "yes"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**4, "5120.0 GiB")]
)
def test_sizes_are_readable(count: int, text: str) -> None:
    """Bytes are shown in the largest binary unit that fits."""
    assert screen.size(count) == text
