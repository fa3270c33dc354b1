"""What runs print: kept while it happens, from every writer of the process, without secrets, for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.declare.redaction import forget_secrets, remember_secret
from ematix_flow.errors import UnknownName
from ematix_flow.watch.run_output import (
    capture_pipeline_logs,
    find_log,
    follow,
    is_capture_wanted,
    kept_output,
    log_file,
    logs_dir,
    prune_old_logs,
    read_run_logs,
)


@pytest.fixture(autouse=True)
def folder(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EMATIX_FLOW_LOGS_DIR", str(tmp_project / "kept"))
    forget_secrets()
    yield tmp_project / "kept"
    forget_secrets()


def program(code: str, **options) -> subprocess.CompletedProcess[str]:
    """A process of its own: descriptors belong to the whole process."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


def test_both_streams_are_kept_and_still_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_pipeline_logs("7f3a") as path:
        print("loading")
        print("careful", file=sys.stderr)
        assert path is not None and path.read_text() == "loading\ncareful\n", "in the file while it happens"
        print("no end of line", end="")
    assert read_run_logs("7f3a") == "loading\ncareful\nno end of line\n"
    assert capsys.readouterr() == ("loading\nno end of line", "careful\n")
    print("afterwards")
    assert "afterwards" not in read_run_logs("7f3a")


def test_a_run_that_raises_keeps_what_it_said() -> None:
    with pytest.raises(ZeroDivisionError), capture_pipeline_logs("7f3a"):
        print("about to divide")
        1 / 0  # noqa: B018
    assert read_run_logs("7f3a") == "about to divide\n"


def test_secrets_are_not_kept_also_when_written_in_pieces() -> None:
    remember_secret("tr0ub4dor")
    with capture_pipeline_logs("7f3a"):
        print("login with tr0u", end="")
        print("b4dor")
    assert read_run_logs("7f3a") == "login with <redacted>\n"


def test_a_logger_made_in_a_run_outlives_it(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_pipeline_logs("7f3a"):
        kept = sys.stdout
    kept.write("later\n")
    assert capsys.readouterr().out == "later\n" and read_run_logs("7f3a") == ""


def test_native_output_and_that_of_children_is_kept_in_a_worker(folder: Path) -> None:
    code = """
import ctypes, os, subprocess, sys
from contextlib import redirect_stdout
from ematix_flow.watch.run_output import capture_pipeline_logs
for run in ("one", "two"):
    with capture_pipeline_logs(run, descriptors=True):
        print("python", run)
        os.write(1, b"descriptor\\n")
        ctypes.CDLL(None).puts(b"libc"); ctypes.CDLL(None).fflush(None)
        subprocess.run(["sh", "-c", "echo child; echo child-err >&2"])
        sys.stdout.buffer.write(b"bytes\\n")
        with redirect_stdout(sys.stderr):
            print("story")
print("between")
os.write(1, b"after\\n")
"""
    done = program(code)
    assert done.returncode == 0, done.stderr
    for run in ("one", "two"):
        lines = read_run_logs(run).splitlines()
        assert sorted(lines) == sorted([f"python {run}", "descriptor", "libc", "child", "child-err", "bytes", "story"])
    assert sorted(done.stderr.splitlines()) == ["child-err", "child-err", "story", "story"]
    assert sorted(done.stdout.splitlines()) == sorted(
        ["python one", "python two", *["descriptor", "libc", "child", "bytes"] * 2, "between", "after"]
    )


def test_output_goes_to_where_the_descriptors_lead_when_a_run_begins(folder: Path, tmp_path: Path) -> None:
    code = """
import os, sys
from ematix_flow.watch.run_output import capture_pipeline_logs
with capture_pipeline_logs("one", descriptors=True):
    os.write(1, b"first\\n")
os.dup2(os.open("elsewhere", os.O_CREAT | os.O_WRONLY), 1)
with capture_pipeline_logs("two", descriptors=True):
    os.write(1, b"second\\n")
os.write(1, b"third\\n")
"""
    done = program(code, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("first\n", "")
    assert (tmp_path / "elsewhere").read_text() == "second\nthird\n"
    assert read_run_logs("two") == "second\n"


def test_a_child_that_outlives_its_run_is_not_hurt(folder: Path) -> None:
    """As a JVM is: started in one run, still writing in the next."""
    code = """
import subprocess, sys
from ematix_flow.watch.run_output import capture_pipeline_logs
with capture_pipeline_logs("one", descriptors=True):
    jvm = subprocess.Popen(["sh", "-c", "read _; echo in-between; read _; echo in-two; read _"], stdin=subprocess.PIPE)
def say():
    jvm.stdin.write(b"\\n"); jvm.stdin.flush()
say()
with capture_pipeline_logs("two", descriptors=True) as path:
    say()
    while "in-two" not in path.read_text():
        pass
say()
sys.exit(jvm.wait())
"""
    done = program(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["in-between", "in-two"]
    assert "in-two" in read_run_logs("two") and read_run_logs("one") == ""


def test_a_worker_takes_the_descriptors_before_it_starts_a_jvm(folder: Path) -> None:
    code = """
import subprocess, sys
from ematix_flow.watch.run_output import capture_pipeline_logs, take_descriptors
take_descriptors()
jvm = subprocess.Popen(["sh", "-c", "read _; echo native; read _; echo end"], stdin=subprocess.PIPE)
with capture_pipeline_logs("one") as path:
    print("python")
    jvm.stdin.write(b"\\n"); jvm.stdin.flush()
    while "native" not in path.read_text():
        pass
print("between")
jvm.stdin.close()
jvm.wait()
print("last words", file=sys.stderr)
"""
    done = program(code)
    assert done.returncode == 0, done.stderr
    assert sorted(read_run_logs("one").split()) == ["native", "python"]
    assert sorted(done.stdout.split()) == ["between", "end", "native", "python"] and done.stderr == "last words\n"


def test_runs_in_threads_have_a_file_each(capsys: pytest.CaptureFixture[str]) -> None:
    both_begun = threading.Barrier(2)

    def run(name: str) -> None:
        with capture_pipeline_logs(name):
            both_begun.wait(10)
            for number in range(50):
                print(name, number)
            both_begun.wait(10)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for name in ("one", "two"):
        assert read_run_logs(name) == "".join(f"{name} {number}\n" for number in range(50))
    print("afterwards")
    assert len(capsys.readouterr().out.splitlines()) == 101
    assert "afterwards" not in read_run_logs("one") + read_run_logs("two")


def test_a_killed_run_leaves_what_it_said(folder: Path) -> None:
    code = """
import os, signal
from ematix_flow.watch.run_output import capture_pipeline_logs
with capture_pipeline_logs("7f3a", descriptors=True):
    print("row 1 of 2")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert program(code).returncode == -signal.SIGKILL
    assert read_run_logs("7f3a") == "row 1 of 2\n"


def test_much_output_is_whole(folder: Path) -> None:
    code = """
import subprocess
from ematix_flow.watch.run_output import capture_pipeline_logs
with capture_pipeline_logs("7f3a", descriptors=True):
    subprocess.run(["seq", "200000"])
"""
    done = program(code)
    assert done.stdout == read_run_logs("7f3a") == "".join(f"{n}\n" for n in range(1, 200_001))


@pytest.mark.parametrize(
    "run_id", ["../../etc/passwd", "/etc/passwd", "..", ".", "", ".hidden", "a/b", "x" * 5000, "é\n"]
)
def test_no_id_leads_out_of_the_folder(run_id: str, folder: Path) -> None:
    assert log_file(run_id).parent == folder
    with capture_pipeline_logs(run_id):
        print("here")
    assert [path.name for path in folder.iterdir() if path.name != ".pruned"] == [log_file(run_id).name]
    assert log_file(run_id).read_text() == "here\n"


def test_other_files_cannot_be_read(folder: Path) -> None:
    (folder.parent / "secret.log").write_text("mine")
    with pytest.raises(UnknownName):
        read_run_logs("../secret")


def test_the_beginning_of_an_id_is_enough_when_it_is_unique() -> None:
    for run in ("7f3a91c2", "7f3b0000", "aaaa"):
        with capture_pipeline_logs(run):
            print(run)
    assert read_run_logs("aa") == "aaaa\n"
    with pytest.raises(UnknownName, match="2 runs") as several:
        find_log("7f3")
    assert several.value.fix == "write more of it: 7f3a91c2, 7f3b0000"
    with pytest.raises(UnknownName, match="No output of a run 'zz'"):
        find_log("zz")


def test_the_last_lines() -> None:
    with capture_pipeline_logs("7f3a"):
        print("1\n2\n3")
    assert read_run_logs("7f3a", tail=2) == "2\n3\n"
    assert read_run_logs("7f3a", tail=0) == ""


def test_following_ends_with_the_run() -> None:
    seen: list[str] = []
    with capture_pipeline_logs("7f3a") as path:
        assert path is not None
        reader = threading.Thread(target=lambda: seen.extend(follow(path, poll_s=0.01)))
        print("first")
        reader.start()
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            time.sleep(0.005)
        assert seen == ["first\n"] and reader.is_alive()
        print("last", end="")
    reader.join(10)
    assert seen == ["first\n", "last\n"]


def test_old_output_is_removed_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    for name, days in (("old.log", 40), ("new.log", 3), ("note.txt", 400)):
        (folder / name).write_text("")
        then = time.time() - days * 86400
        os.utime(folder / name, (then, then))
    assert prune_old_logs(100) == 0
    with capture_pipeline_logs("7f3a"):
        pass
    assert {path.name for path in folder.iterdir()} == {"new.log", "note.txt", "7f3a.log", ".pruned"}
    monkeypatch.setenv("EMATIX_FLOW_LOGS_MAX_AGE_DAYS", "1")
    os.utime(folder / ".pruned", (0, 0))
    with capture_pipeline_logs("7f3a"):
        pass
    assert not (folder / "new.log").exists()


def test_a_folder_that_cannot_be_had_is_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write_text("a file")
    with capture_pipeline_logs("7f3a") as path:
        print("goes on")
    assert path is None and capsys.readouterr().out == "goes on\n"
    assert "the output of run '7f3a' is not kept" in caplog.text


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMATIX_FLOW_CAPTURE_LOGS", raising=False)
    assert is_capture_wanted()
    with kept_output("seen"):
        print("kept")
    monkeypatch.setenv("EMATIX_FLOW_CAPTURE_LOGS", "1")
    assert is_capture_wanted()
    monkeypatch.setenv("EMATIX_FLOW_CAPTURE_LOGS", "0")
    assert not is_capture_wanted()
    with kept_output("unseen"):
        print("not kept")
    assert read_run_logs("seen") == "kept\n" and not log_file("unseen").exists()


def test_the_default_folder_is_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMATIX_FLOW_LOGS_DIR")
    assert logs_dir() == Path(os.environ["HOME"]) / ".ematix-flow" / "logs"
