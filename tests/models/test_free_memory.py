"""The memory that a process may still take: that of the machine, or of the control group that limits it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.models.free_memory import free_memory_bytes

MIB = 2**20
FILES = {
    "version 2": {
        "proc/self/cgroup": "0::/system.slice/edge.service\n",
        "sys/fs/cgroup/system.slice/memory.max": "max\n",
        "sys/fs/cgroup/system.slice/memory.current": f"{900 * MIB}\n",
        "sys/fs/cgroup/system.slice/edge.service/memory.max": f"{512 * MIB}\n",
        "sys/fs/cgroup/system.slice/edge.service/memory.current": f"{400 * MIB}\n",
        "sys/fs/cgroup/system.slice/edge.service/memory.stat": f"anon 7\ninactive_file {8 * MIB}\n",
    },
    "version 1, seen from a container": {
        "proc/self/cgroup": "5:cpu:/of/the/host\n4:memory:/of/the/host\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{512 * MIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{400 * MIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {8 * MIB}\n",
    },
}


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_the_limit_of_a_service_or_a_container_counts(tmp_path: Path, files: dict[str, str]) -> None:
    assert free_memory_bytes(tmp_path) is None
    for name, text in {**files, "proc/meminfo": f"MemFree: 1 kB\nMemAvailable: {2**20} kB\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    assert free_memory_bytes(tmp_path) == 120 * MIB
    (tmp_path / "proc/self/cgroup").unlink()
    assert free_memory_bytes(tmp_path) == 1024 * MIB
