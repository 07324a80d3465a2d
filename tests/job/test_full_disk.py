"""A full disk costs logs and saves until there is room again, never the run, and never the last good checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swell.runtime.standard_output import PatientOutput
from swell.supervisor.troubles import Troubles, disk_trouble
from tests.supervisor.namespaces import in_namespace, why_not

SCENARIO = str(Path(__file__).with_name("full_disk.py"))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_training_goes_on_while_the_disk_is_full_and_saves_when_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    line = in_namespace(sys.executable, SCENARIO, str(disk), mount=f"mount -t tmpfs -o size=6m none {disk}")
    environ = {**os.environ, "TERMINAL": str(tmp_path / "terminal")}
    environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), environ.get("PYTHONPATH", "")])
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "! the disk of" in done.stdout, "status says so"


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_shared_memory_that_is_too_small_is_named(tmp_path: Path) -> None:
    code = """
import torch, swell
job = swell.Job(None, batch=64, device="cpu")
model = torch.nn.Linear(1000, 1)
job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.loader(torch.utils.data.TensorDataset(torch.randn(64, 1000)), num_workers=1)
for _ in job.epochs(1):
    for (x,) in loader:
        pass
"""
    (tmp_path / "train.py").write_text(code)
    mount = "mount -t tmpfs -o size=64k none /dev/shm"
    line = in_namespace(sys.executable, str(tmp_path / "train.py"), mount=mount)
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "through shared memory, and /dev/shm has" in done.stderr and "of 64 kB free" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_is_printed_onto_a_full_disk_is_dropped_and_counted() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    output = PatientOutput(descriptor)
    assert output.write(b"hello") == 5 and output.dropped == 5
    os.close(descriptor)


def test_errors_that_have_nothing_to_do_with_the_disk_are_raised() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        PatientOutput(-1).write(b"hello")


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize(
    ("options", "words"), [("size=4k", "is full"), ("size=1m,ro", "is read-only"), ("size=1m,nr_inodes=1", "no inodes")]
)
def test_what_is_wrong_with_a_disk_is_told(options: str, words: str, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from swell.supervisor.troubles import disk_trouble\n"
    code += "print(disk_trouble(Path(sys.argv[1])))"
    line = in_namespace(sys.executable, "-c", code, str(tmp_path), mount=f"mount -t tmpfs -o {options} none {tmp_path}")
    assert words in subprocess.run(line, capture_output=True, text=True, check=True).stdout


def test_a_folder_that_has_gone_is_told(tmp_path: Path) -> None:
    assert "cannot be reached" in disk_trouble(tmp_path / "nowhere")


def test_a_trouble_is_told_when_it_begins_changes_and_ends() -> None:
    said: list[str] = []
    troubles = Troubles(said.append)
    for text in ("", "full: make room", "full: make room", "read-only: mount it", "", ""):
        troubles.report("disk", text)
    assert said == ["full: make room", "read-only: mount it", "no longer so: read-only"]
    assert troubles.texts() == []
