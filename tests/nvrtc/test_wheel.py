"""An installed wheel works without the repository: templates and documents travel in it."""

from __future__ import annotations

import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_what_it_needs(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / "templates"
    templates = {f"wmmagen/templates/{p.relative_to(folder)}" for p in folder.rglob("*.jinja")}
    assert templates
    assert templates <= held
    assert "wmmagen/py.typed" in held
    assert {f"wmmagen/schemas/{p.name}" for p in (ROOT / "wmmagen" / "schemas").glob("*.json")} <= held
    assert not any(name.startswith("tests/") for name in held)


def test_a_fresh_environment_renders_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "an environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    # The pip of the running environment, which is there already, installs into the other one.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    # The dependencies are those of the running environment; a path in a .pth file brings no editable install along.
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    script = environment / "bin" / "wmmagen"

    def run(*arguments: str, status: int = 0) -> str:
        command = [str(script), *arguments]
        done = subprocess.run(command, cwd=empty, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout

    where = subprocess.run(
        [str(python), "-c", "import wmmagen; print(wmmagen.__file__)"],
        cwd=empty, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert str(packages) in where
    here = subprocess.run(
        [sys.executable, "-m", "wmmagen", "render", "", "--arch", "sm_75"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert run("render", "", "--arch", "sm_75") == here
    assert '"urn:wmmagen:schema:sweep"' in run("schema", "sweep")
    assert "pad_a=0 or 8" in run("check", "pad_a=4", "--arch", "sm_75", status=2)
    assert list(empty.iterdir()) == []
