"""What counts as telling about a person or a machine, and what does not."""

from __future__ import annotations

import pickle

import pytest

from cachekit.cli.privacy import Findings, this_machine


def found(data: bytes, *names: tuple[str, str]) -> dict[str, str]:
    """Texts found, with their kinds."""
    findings = Findings(names)
    findings.look("here", data)
    return {one.text: one.kind for one in findings.sorted()}


@pytest.mark.parametrize(
    ("data", "text", "kind"),
    [
        (b'File "/home/joe/models/unet.py", line 3', "/home/joe/models/unet.py", "home"),
        ("at /home/jörg/x".encode(), "/home/jörg/x", "home"),
        (b"# /srv/engine/run.py:12", "/srv/engine/run.py", "path"),
        (b"g++ -I/home/joe/include -o x", "/home/joe/include", "home"),
        (b"RPATH=$ORIGIN/lib:/data/torch/lib", "/data/torch/lib", "path"),
        (b"file:///home/joe/a.py", "/home/joe/a.py", "home"),
        (b"\x00/usr/include/c++/12\x00", "/usr/include/c++/12", "system"),
        (b"mail joe@studio.example.com now", "joe@studio.example.com", "address"),
        (b"cache at gpu-7.render.internal:6379", "gpu-7.render.internal", "host"),
        (b"host gpu-7.local said", "gpu-7.local", "host"),
        (b"listening on 192.168.1.20:80", "192.168.1.20", "ip"),
    ],
)
def test_what_is_found(data: bytes, text: str, kind: str) -> None:
    """Paths, addresses and hosts, each with the kind that says how much it tells."""
    assert found(data) == {text: kind}


@pytest.mark.parametrize("length", range(12, 128))
def test_pickled_paths_are_found_whatever_their_length(length: int) -> None:
    """A pickle writes the length right before the text, and that byte may look like a letter."""
    path = "/data/" + "x" * (length - 6)

    assert found(pickle.dumps(path, protocol=5)) == {path: "path"}


@pytest.mark.parametrize(
    "data",
    [
        b"https://github.com/pytorch/pytorch/issues/1234",
        b"x = (a + b)/width/height_of_it",
        b"torch/_inductor/codecache.py",
        b"threading.local()",
        b"version 12.4.1.0 of 10.2",
        b"@triton.jit\ndef kernel(x): pass",
        b"a / b / c // d",
    ],
)
def test_what_is_not_found(data: bytes) -> None:
    """URLs, divisions, relative paths, attributes and versions tell nothing."""
    assert found(data) == {}


def test_names_of_this_machine_are_found_as_words() -> None:
    """A user's or a host's name counts as a whole word only."""
    assert found(b"by anna_k on gpubox", ("user", "anna_k"), ("host", "gpubox")) == {
        "anna_k": "user",
        "gpubox": "host",
    }
    assert found(b"susanna_kettle gpuboxes", ("user", "anna_k"), ("host", "gpubox")) == {}


def test_names_that_every_machine_has_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`root` and `localhost` are words of any program."""
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    assert this_machine() == []

    monkeypatch.setattr("socket.gethostname", lambda: "render7.studio")
    assert this_machine() == [("host", "render7"), ("host", "render7.studio")]


def test_where_it_was_found_is_kept_and_counted() -> None:
    """A path that stands in many artifacts is one finding with its count and places."""
    findings = Findings()
    findings.look("one", b"/srv/engine/run.py /srv/engine/run.py")
    findings.look("two", b"/srv/engine/run.py")

    (only,) = findings.sorted()

    assert (only.count, only.places) == (3, ["one", "two"])
