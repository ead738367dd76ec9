"""Nsight Compute's tables, as its versions write them, and a profiler that does not know everything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import ncu

TABLE = """==PROF== Connected to process 4711 (/usr/bin/python3)
==PROF== Profiling "first_kernel" - 0: 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","smsp__inst_executed.sum","sm__gone.sum"
"","","","","","","","","","","","sector","inst",""
"0","4711","python3","127.0.0.1","first_kernel","1","7","(128, 1, 1)","(4, 1, 1)","0","9.0","1,234,567","89","n/a"
"1","4711","python3","127.0.0.1","second(void*)","1","7","(128, 1, 1)","(4, 1, 1)","0","9.0","12.00","0","n/a"
""".replace("\\\n", "")


def test_a_table_among_other_lines() -> None:
    first, second = ncu.parse(TABLE)
    assert first == ncu.Row(
        "first_kernel", {"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 1234567.0, "smsp__inst_executed.sum": 89.0}
    )
    assert second.kernel == "second(void*)"
    assert second.values["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 12


def test_no_table_has_no_rows() -> None:
    assert ncu.parse("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n") == ()


@pytest.mark.parametrize(
    ("old", "new"), [('"0","4711"', '"0"'), ("Kernel Name", "Name")], ids=["a short line", "no kernel"]
)
def test_a_table_that_is_not_what_was_asked_for(old: str, new: str) -> None:
    with pytest.raises(ncu.Unreadable):
        ncu.parse(TABLE.replace(old, new))


FAKE = """#!{python}
import sys
from pathlib import Path
words = sys.argv[1:]
if "--query-metrics" in words:
    print("Device NVIDIA GH100 (GH100)")
    print("----------------  -------")
    print("l1tex__known      Counter    sector   of that")
    print("l1tex__share      Ratio               of this")
    print("sm__older         a description alone")
    sys.exit()
log = Path(words[words.index("--log-file") + 1])
asked = words[words.index("--metrics") + 1].split(",")
unknown = [name for name in asked if "unknown" in name]
if unknown:
    log.write_text("==ERROR== Failed to find metric regex:^" + unknown[0].partition(".")[0] + "[.](sum|avg)$\\n")
    sys.exit(1)
if {refuses}:
    print("==ERROR== The user does not have permission", file=sys.stderr)
    sys.exit(1)
head = ["ID", "Kernel Name", *asked]
rows = [head, [""] * len(head), ["0", words[-1], *("7" for _ in asked)]]
log.write_text("==PROF== Connected\\n" + "".join(",".join(f'"{{cell}}"' for cell in row) + "\\n" for row in rows))
"""


def fake(folder: Path, *, refuses: bool = False) -> Path:
    tool = folder / "ncu"
    tool.write_text(FAKE.format(python=sys.executable, refuses=refuses))
    tool.chmod(0o755)
    return tool


def test_metrics_that_it_does_not_know_are_left_out(tmp_path: Path) -> None:
    asked = ["sm__unknown.sum", "sm__a.sum", "sm__b_unknown.sum", "sm__c.sum"]
    profile = ncu.profile(fake(tmp_path), asked, ["program", "some_kernel"], 60)
    assert profile.rows == (ncu.Row("some_kernel", {"sm__a.sum": 7.0, "sm__c.sum": 7.0}),)
    assert profile.absent == ("sm__unknown.sum", "sm__b_unknown.sum")
    assert "sm__a.sum,sm__c.sum" in profile.command


def test_metrics_with_two_suffixes_are_left_out_by_the_name_before_them(tmp_path: Path) -> None:
    asked = ["sm__unknown.avg.pct_of_peak_sustained_elapsed", "sm__a.avg.per_second"]
    profile = ncu.profile(fake(tmp_path), asked, ["program", "k"], 60, ["--cache-control", "none"])
    assert (profile.absent, profile.rows[0].values) == ((asked[0],), {asked[1]: 7.0})
    assert profile.command[1:3] == ("--cache-control", "none")


def test_one_that_knows_nothing_or_refuses_says_so(tmp_path: Path) -> None:
    with pytest.raises(ncu.Refusal, match="none of the metrics"):
        ncu.profile(fake(tmp_path), ["sm__unknown.sum"], ["program", "k"], 60)
    with pytest.raises(ncu.Refusal, match="does not have permission"):
        ncu.profile(fake(tmp_path, refuses=True), ["sm__a.sum"], ["program", "k"], 60)


def test_what_it_lists_are_counters(tmp_path: Path) -> None:
    assert ncu.known_metrics(fake(tmp_path), "gh100") == {"l1tex__known", "sm__older"}
    found = ncu.known_metrics(fake(tmp_path), "gh100", counters=False)
    assert found == {"l1tex__known", "l1tex__share", "sm__older"}
