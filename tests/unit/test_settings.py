"""``cachekit.settings``: what each variable accepts, its default, and what a wrong value is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cachekit.errors import ConfigurationError
from cachekit.settings import VARIABLES, Settings

HOME = {"HOME": "/home/kim"}


def test_defaults_when_nothing_is_set() -> None:
    """An empty environment gives the automatic mode in the user's cache folder."""
    settings = Settings.from_env(HOME)

    assert settings == Settings(dir=Path("/home/kim/.cache/cachekit"))
    assert (settings.mode, settings.save, settings.namespace) == ("auto", "auto", "local")


def test_blank_is_the_same_as_unset() -> None:
    """A variable that is set to nothing, as compose files do, takes its default."""
    blank = {variable.name: " " for variable in VARIABLES}

    assert Settings.from_env(HOME | blank) == Settings.from_env(HOME)


@pytest.mark.parametrize("mode", ["auto", "on", "readonly", "strict", "off"])
def test_every_mode_is_accepted_in_any_case(mode: str) -> None:
    """Modes are read without regard to case and surrounding space."""
    assert Settings.from_env(HOME | {"CACHEKIT_MODE": f" {mode.upper()} "}).mode == mode


@pytest.mark.parametrize("save", ["auto", "close", "never"])
def test_every_save_policy_is_accepted(save: str) -> None:
    """All three times of saving can be chosen."""
    assert Settings.from_env(HOME | {"CACHEKIT_SAVE": save}).save == save


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("CACHEKIT_MODE", "automatic", "auto, on, readonly, strict, off"),
        ("CACHEKIT_SAVE", "always", "auto, close, never"),
        ("CACHEKIT_NAMESPACE", "../other", "starting with a letter or digit"),
        ("CACHEKIT_NAMESPACE", "Team", "a-z"),
        ("CACHEKIT_NAMESPACE", "a" * 64, "at most 63"),
        ("CACHEKIT_MAX_SIZE", "10G", "10GiB, 500MB"),
        ("CACHEKIT_MAX_SIZE", "lots", "none for no limit"),
        ("CACHEKIT_MAX_SIZE", "0", "none for no limit"),
        ("CACHEKIT_MAX_SIZE", "-1", "none for no limit"),
    ],
)
def test_wrong_value_is_refused_and_told_what_is_allowed(name: str, value: str, told: str) -> None:
    """The message names the variable, the value and the allowed values."""
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_env(HOME | {name: value})

    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10GiB", 10 * 2**30),
        ("500MB", 500_000_000),
        ("1.5 tib", 3 * 2**39),
        ("64kb", 64_000),
        ("1048576", 2**20),
        ("7 B", 7),
        ("none", None),
        ("", 20 * 2**30),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, found: int | None) -> None:
    """Binary and decimal units mean what they say, a bare number bytes, and none no limit."""
    assert Settings.from_env(HOME | {"CACHEKIT_MAX_SIZE": text}).max_size == found


def test_values_given_in_code_are_checked_too() -> None:
    """Replacing a field goes through the same checks as the environment."""
    settings = Settings.from_env(HOME)

    assert dataclasses.replace(settings, mode="off").mode == "off"
    with pytest.raises(ConfigurationError, match="CACHEKIT_MODE='never'"):
        dataclasses.replace(settings, mode="never")
    with pytest.raises(ConfigurationError, match="CACHEKIT_MAX_SIZE='0'"):
        dataclasses.replace(settings, max_size=0)
    with pytest.raises(ConfigurationError, match="not an absolute path"):
        Settings(dir=Path("relative"))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CACHEKIT_DIR": "/data/cachekit"}, "/data/cachekit"),
        ({"CACHEKIT_DIR": "~/warm"}, "/home/kim/warm"),
        ({"CACHEKIT_DIR": "/data//a/../cachekit/"}, "/data/cachekit"),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/cachekit"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/kim/.cache/cachekit"),
        ({"XDG_CACHE_HOME": "/caches", "CACHEKIT_DIR": "/data"}, "/data"),
    ],
)
def test_folder_is_chosen_in_order(environ: dict[str, str], expected: str) -> None:
    """CACHEKIT_DIR wins over an absolute XDG_CACHE_HOME, which wins over the home folder."""
    assert Settings.from_env(HOME | environ).dir == Path(expected)


def test_relative_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative CACHEKIT_DIR means the folder it named when it was read, also after a later chdir."""
    monkeypatch.chdir(tmp_path)

    assert Settings.from_env(HOME | {"CACHEKIT_DIR": "cache"}).dir == tmp_path / "cache"


def test_folder_cannot_be_guessed_without_a_home() -> None:
    """An unknown home folder is reported with what to set."""
    with pytest.raises(ConfigurationError, match="set CACHEKIT_DIR"):
        Settings.from_env({"CACHEKIT_DIR": "~nobody-of-that-name/cache"})


def test_everything_lies_under_the_folder() -> None:
    """Store, manifest, keys and private folders are apart and below the one folder."""
    settings = Settings.from_env({"CACHEKIT_DIR": "/data"})
    places = [settings.store_root, settings.manifest_path, settings.keys_root, settings.process_root]

    assert len(set(places)) == len(places)
    assert {place.parent for place in places} == {Path("/data")}


def test_misspelt_variable_is_named() -> None:
    """A CACHEKIT_ variable that nothing reads is reported, others are none of our business."""
    settings = Settings.from_env(
        HOME | {"CACHEKIT_MODES": "off", "CACHEKIT_MODE": "off", "TRITON_CACHE_DIR": "/t"}
    )

    assert settings.unknown == ("CACHEKIT_MODES",)


def test_real_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the environment of this process is read."""
    monkeypatch.setenv("CACHEKIT_MODE", "readonly")

    assert Settings.from_env().mode == "readonly"


def test_every_field_has_a_variable() -> None:
    """The table that README and the CLI are checked against names every setting."""
    fields = {field.name for field in dataclasses.fields(Settings)} - {"unknown"}

    assert {variable.field for variable in VARIABLES} == fields
