"""The environment that holds LMCache: made once, anew if it was not finished, refused in a line.

Small ones here: pip is asked for nothing, or for a file that does not exist.
"""

from pathlib import Path

import pytest
from lmcache_environment import CannotInstall, installed

ROOM = 1 << 20


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    file = tmp_path / "lock.txt"
    file.write_text("# Nothing.\n")
    return file


def test_it_is_made_once(tmp_path: Path, lock: Path) -> None:
    home = installed(tmp_path / "engines", lock=lock, needed=ROOM)
    kept = home / "kept"
    kept.touch()
    assert installed(tmp_path / "engines", lock=lock, needed=ROOM) == home
    assert kept.exists()


def test_one_that_was_not_finished_is_made_anew(tmp_path: Path, lock: Path) -> None:
    home = installed(tmp_path / "engines", lock=lock, needed=ROOM)
    (home / ".installed").unlink()
    (home / "half").touch()
    assert installed(tmp_path / "engines", lock=lock, needed=ROOM) == home
    assert (home / ".installed").exists()
    assert not (home / "half").exists()


def test_another_lock_file_is_another_environment(tmp_path: Path, lock: Path) -> None:
    first = installed(tmp_path / "engines", lock=lock, needed=ROOM)
    lock.write_text("# Nothing else.\n")
    assert installed(tmp_path / "engines", lock=lock, needed=ROOM) != first


def test_what_pip_cannot_install_is_one_line_and_no_environment(tmp_path: Path, lock: Path) -> None:
    lock.write_text(f"./missing-1-py3-none-any.whl --hash=sha256:{64 * '0'}\n")
    for _ in range(2):
        with pytest.raises(CannotInstall, match="missing-1") as told:
            installed(tmp_path / "engines", lock=lock, needed=ROOM)
        assert "\n" not in str(told.value)


def test_too_little_room_is_said_before_anything_is_made(tmp_path: Path, lock: Path) -> None:
    with pytest.raises(CannotInstall, match="KVTIER_CACHE"):
        installed(tmp_path / "engines", lock=lock, needed=1 << 60)
    assert [each.suffix for each in (tmp_path / "engines").iterdir()] == [".lock"]


def test_a_directory_that_nobody_can_make_is_one_line(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotInstall, match="KVTIER_CACHE"):
        installed(tmp_path / "file" / "engines", lock=lock, needed=ROOM)
