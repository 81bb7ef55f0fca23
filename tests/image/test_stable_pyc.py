"""Compiled modules come out the same bytes every time, and still do what they did."""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
import subprocess
import sys
from pathlib import Path
from types import CodeType, ModuleType

import pytest

SOURCE = '''"""A module with everything that a constant can be."""
import math

GREETING = "good day to all of you"

class Scale:
    factor = 2.5
    def of(self, value, *, unit="a long word, not a name", many=(1, 2.0, -0.0, 3j, b"x", None, ...)):
        """Known: None and three words."""
        if value in {None, "metre", "second", "kelvin", "mole"}:
            return unit
        return [part for part in many if part != value], 1 << 70, {"inner": lambda: (GREETING, math.pi)}

async def late(first, /, *rest):
    yield first in {("a", None), ("b", 1)}, "good day to all of you"
'''


@pytest.fixture(scope="session")
def script(checkout: Path) -> Path:
    return checkout / "scripts" / "image" / "stable_pyc.py"


@pytest.fixture(scope="session")
def stable_pyc(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("stable_pyc", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(folder: Path) -> Path:
    source = folder / "measures.py"
    source.write_text(SOURCE)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    return Path(str(py_compile.compile(str(source), dfile="/opt/measures.py", invalidation_mode=mode)))


def unshared(code: CodeType) -> CodeType:
    """Equal code in which no two constants or names are one object, and nothing is held by anybody else."""

    def fresh(value: object) -> object:
        if isinstance(value, CodeType):
            return unshared(value)
        if isinstance(value, tuple):
            return tuple([fresh(part) for part in value])
        if isinstance(value, str):
            return "".join([*value, ""])
        return marshal.loads(marshal.dumps(value, 2))

    return code.replace(
        co_consts=fresh(code.co_consts),  # type: ignore[arg-type]
        co_filename=str(fresh(code.co_filename)),
        co_name=str(fresh(code.co_name)),
    )


def test_equal_code_with_other_sharing_comes_out_the_same(stable_pyc: ModuleType, tmp_path: Path) -> None:
    content = compiled(tmp_path).read_bytes()
    code = marshal.loads(content[16:])
    held = [code, *code.co_consts]  # one reference more to each: what marshal marks by
    more, fewer = content[:16] + marshal.dumps(code), content[:16] + marshal.dumps(unshared(code))
    assert marshal.loads(more[16:]) == marshal.loads(fewer[16:]) == held[0]
    assert more != fewer, "marshal itself writes both alike; this test tells nothing any more"
    first, second = (stable_pyc.stable(one, tmp_path) for one in (more, fewer))
    assert first == second and first[:16] == content[:16]
    assert stable_pyc.stable(first, tmp_path) == first


def test_neither_hash_seed_nor_addresses_show(script: Path, tmp_path: Path) -> None:
    """Compiled and rewritten in processes of their own, each with another order of sets and another None."""
    results = set()
    for seed in "0123":
        folder = tmp_path / seed
        folder.mkdir()
        path = compiled(folder)
        code = (
            f"import py_compile as p; p.compile({str(folder / 'measures.py')!r}, dfile='/opt/measures.py',"
            " invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH)"
        )
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        subprocess.run([sys.executable, str(script), str(folder)], check=True, env=environment)
        results.add(path.read_bytes())
    assert len(results) == 1


@pytest.mark.parametrize("members", [(None, "a", "b"), ("b", None, "a"), (1, ("x", None), b"y", 2.5, ...)])
def test_a_set_is_written_by_its_members_and_reads_back(
    stable_pyc: ModuleType, members: tuple[object, ...]
) -> None:
    written = stable_pyc.in_order(frozenset(members))
    assert written == stable_pyc.in_order(frozenset(reversed(members)))
    assert marshal.loads(written) == frozenset(members)
    parts = [marshal.dumps(member, 2) for member in members]
    assert sorted(parts) == [part for _, part in sorted((written.index(part), part) for part in parts)]


def test_the_module_is_imported_from_the_rewritten_file_and_behaves(script: Path, tmp_path: Path) -> None:
    path = compiled(tmp_path)
    before = path.read_bytes()
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True)
    assert path.read_bytes() != before
    (tmp_path / "measures.py").write_text("raise SystemExit('the source was read')")  # unchecked: it is not
    code = (
        "import measures as m, asyncio\n"
        "async def all(): return [x async for x in m.late(('a', None))]\n"
        "s = m.Scale()\n"
        "print(s.of('mole'), '|', s.of(None), '|', s.of(2.0)[:2])\n"
        "print(s.of(1)[2]['inner'](), asyncio.run(all()))\n"
        "print(m.__doc__, m.Scale.of.__doc__, m.Scale.of.__code__.co_filename)"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    word = "a long word, not a name"
    assert done.stdout.splitlines() == [
        f"{word} | {word} | ([1, -0.0, 3j, b'x', None, Ellipsis], {1 << 70})",
        "('good day to all of you', 3.141592653589793) [(True, 'good day to all of you')]",
        "A module with everything that a constant can be. Known: None and three words. "
        f"{tmp_path}/measures.py",
    ], done.stderr


def test_our_own_modules_read_back_as_they_were_compiled(
    stable_pyc: ModuleType, checkout: Path, tmp_path: Path
) -> None:
    for source in sorted((checkout / "stack" / "supply").glob("*.py")):
        target = tmp_path / f"{source.stem}.pyc"
        py_compile.compile(str(source), cfile=str(target), doraise=True)
        content = target.read_bytes()
        again = stable_pyc.stable(content, target)
        assert marshal.loads(again[16:]) == marshal.loads(content[16:])


def test_a_folder_without_compiled_code_is_an_error(script: Path, tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True).returncode == 3
