"""What several of these files measure beside."""

from __future__ import annotations

import pytest

from tests import fake_cublas
from tests.fake_cublas import FakeCard, FakeLt
from wmmagen.backends import cublas
from wmmagen.backends.library import CardLibrary


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> CardLibrary:
    """A library whose products run on the host, each by one candidate, which is right."""
    lt = FakeLt(spoils=(lambda d: None,))
    monkeypatch.setattr(cublas, "library", lambda: fake_cublas.library_of(lt))
    return CardLibrary(fake_cublas.asking(FakeCard()), "a card")
