"""No test meets the user's cache: what tests the compiler compiles, and what tests the cache sets a folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wmmagen import cache


@pytest.fixture(scope="session", autouse=True)
def _no_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.VARIABLE, "")
        yield
