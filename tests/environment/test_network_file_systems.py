"""A store on a network file system is read and never written; the process's own folder is never put on one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachekit.store import mounts
from tests.environment.conftest import Preload
from tests.environment.containers import Container

CLUSTER = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda1 rw,discard
40 27 0:45 / /home rw,relatime shared:21 - autofs systemd-1 rw,fd=30,pgrp=1,timeout=0
41 40 0:52 / /home/kim rw,relatime shared:30 - nfs4 filer:/export/kim rw,vers=4.2,rsize=1048576,local_lock=none
42 27 0:53 / /scratch rw,relatime - lustre 10.0.0.1@o2ib:/scratch rw,flock
43 27 0:54 / /data\040sets ro,relatime - cifs //nas/data rw,vers=3.1.1
44 27 0:55 / /remote rw,nosuid,nodev - fuse.sshfs kim@host:/srv rw,user_id=1000
45 27 0:56 / /bucket rw - fuse mountpoint-s3 rw,user_id=0
46 27 0:57 / /glued rw - fuse.glusterfs gv0 rw
47 27 0:58 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw,lowerdir=/l
48 41 8:17 / /home/kim/local rw,relatime - xfs /dev/sdb1 rw
49 27 0:60 / /run/user/1000/doc rw - fuse.portal portal rw
50 27 0:61 / /pods rw - fuse.fuse-overlayfs fuse-overlayfs rw
51 27 0:62 / /shares rw - fuse.mergerfs a:b rw
"""
"""A login node of a cluster, as its kernel shows it."""

GVISOR = """
1 0 0:5 / / rw - 9p none rw,trans=fd,rfdno=4,wfdno=4,aname=/,dfltuid=4294967294
2 1 0:6 / /proc rw - proc none rw
3 1 0:7 / /vm rw - 9p share rw,trans=virtio,version=9p2000.L
"""

SHADOWED = """
1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:9 / /srv rw - nfs filer:/srv rw
3 1 0:10 / /srv rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "type_", "network"),
    [
        ("/var/cache", "ext4", False),
        ("/home/kim/.cache/cachekit", "nfs4", True),
        ("/home/kim", "nfs4", True),
        ("/home/kimberly", "autofs", False),
        ("/home/kim/local/cachekit", "xfs", False),
        ("/scratch/kim", "lustre", True),
        ("/data sets/warm", "cifs", True),
        ("/remote/x", "fuse.sshfs", True),
        ("/bucket", "fuse", True),
        ("/glued/x", "fuse.glusterfs", True),
        ("/var/lib/docker/overlay2/x/merged/root", "overlay", False),
        ("/run/user/1000/doc/x", "fuse.portal", False),
        ("/pods/x", "fuse.fuse-overlayfs", False),
        ("/shares/x", "fuse.mergerfs", False),
    ],
)
def test_the_nearest_mount_decides(path: str, type_: str, network: bool) -> None:
    """Each path of a cluster's login node is told apart as its administrator would."""
    mount = mounts.mount_of(path, CLUSTER)

    assert mount is not None
    assert (mount.type, mount.network) == (type_, network)


def test_a_container_s_own_9p_is_local() -> None:
    """gVisor shows a container's files as 9p through a descriptor; a virtual machine's share is one all the same."""
    own, share = mounts.mount_of("/root/.cache", GVISOR), mounts.mount_of("/vm/x", GVISOR)

    assert own is not None
    assert share is not None
    assert (own.network, share.network) == (False, True)


def test_of_two_mounts_at_one_place_the_later_counts() -> None:
    """What was mounted over a network file system hides it."""
    mount = mounts.mount_of("/srv/x", SHADOWED)

    assert mount is not None
    assert mount.type == "tmpfs"


@pytest.mark.parametrize("table", ["", "nonsense", "1 2 3 - ", "1 0 8:1 / / rw - ext4", "\0" * 100])
def test_a_table_that_cannot_be_read_means_local(table: str) -> None:
    """Nothing is refused because of a line that nobody understands."""
    mount = mounts.mount_of("/home", table)

    assert mount is None or not mount.network


NFS = r"""
    sed -E "s#^(([^ ]+ ){4}/mnt .*) - .*#\1 - nfs4 filer:/home rw,vers=4.2#" /proc/self/mountinfo > /tmp/table
    mount --bind /tmp/table /proc/$$/mountinfo
"""
"""Calls ``/mnt`` an NFS mount in the table of this process, which becomes the script."""

HERE = Container(environment={"CACHEKIT_DIR": "/mnt/cachekit", "TMPDIR": None})

TRY = """
from tests.environment.trial import find, keep, room
tell(**room()[1], found=find(), **keep())
"""


def test_a_store_on_a_network_file_system_is_read_and_not_written(tmp_path: Path) -> None:
    """What was kept there is found, a save is refused with what to set, and torch compiles on a local disk."""
    HERE.but(room=tmp_path).run("from tests.environment.trial import keep; tell(**keep())")

    told = HERE.but(room=tmp_path, setup=NFS).run(TRY)

    assert told["found"] == {"generation": 1, "artifacts": 1}
    assert told["place"] == "/tmp/cachekit-0"
    assert told["passed_over"] == ["/mnt/cachekit/process is on a network file system (nfs4)"]
    assert told["error"] == (
        "StoreError: /mnt/cachekit/store/local is on a network file system (nfs4), where locks may not hold: "
        "it is read and never written; set CACHEKIT_DIR to a folder on a local disk"
    )


def test_a_link_to_a_network_file_system_is_one() -> None:
    """A local folder that is a link into one, as ~/.cache often is, deceives nobody."""
    told = HERE.but(
        setup=NFS + "mkdir /mnt/cache; ln -s /mnt/cache /tmp/cache",
        environment={"CACHEKIT_DIR": "/tmp/cache/cachekit"},
    ).run("from tests.environment.trial import keep, room; tell(**room()[1], **keep())")

    assert told["place"] == "/tmp/cachekit-0"
    assert "network file system (nfs4)" in told["error"]


def test_a_file_system_without_locks_is_read(tmp_path: Path, preload: Preload) -> None:
    """Some know no flock at all: bundles are found, and a save says that nothing can be locked."""
    HERE.but(room=tmp_path).run("from tests.environment.trial import keep; tell(**keep())")

    told = HERE.but(room=tmp_path, shell=preload("no_flock")).run("""
from cachekit import Settings
from tests.environment.trial import FINGERPRINT, Library, find, keep
held = Library(Settings.from_env()).store.use(FINGERPRINT.id)
tell(found=find(), held=held is not None, **keep(b"\\x7fELF another"))
""")

    assert told["found"] == {"generation": 1, "artifacts": 1}
    assert told["held"] is False
    assert "ENOLCK" in told["error"]
