"""`precad audit copy`: the whole state, or no folder at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from precad.deploy.errors import ConfigError
from precad.deploy.oversight.log_audit import copy_state
from precad.protos.tls.identity import Role
from precad.servers.errors import StoreError

database_copy = pytest.importorskip("precad.servers.store.copy", reason="needs psycopg")


@pytest.mark.parametrize(
    ("failure", "shown"),
    [(StoreError("the session is lost"), StoreError), (OSError(28, "No space left on device"), ConfigError)],
)
def test_a_copy_that_fails_in_the_middle_leaves_nothing(
    failure: Exception, shown: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty log is whole: half a copy could be taken for one. And the same command can be given again."""

    def fail(_url: str, _role: Role, folder: Path) -> list[Path]:
        (folder / "dealt.sqlite").write_bytes(b"half")
        raise failure

    monkeypatch.setattr(database_copy, "copy_database", fail)
    deployment: Any = SimpleNamespace(dealer=SimpleNamespace(database_url=SecretStr("postgresql://db/precad")))
    for _ in range(2):
        with pytest.raises(shown, match=r"the session is lost|DIR: .*No space left on device"):
            copy_state(deployment, Role.DEALER, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
