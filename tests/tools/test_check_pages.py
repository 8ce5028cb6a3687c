"""Names in the developers' pages are checked against the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_pages import Tree, dependencies, violations


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for path, text in {
        "src/arcbeam/__init__.py": "",
        "src/arcbeam/options.py": 'OPTION = "--shards"\n',
        "src/arcbeam/engine/__init__.py": "",
        "src/arcbeam/engine/budget.py": "class Pace:\n    def after(self): ...\n",
        "src/arcbeam/engine/clocks.py": "",
        "src/arcbeam/spark/batch.py": "",
        "tests/engine/test_budget.py": "",
        "pyproject.toml": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return Tree(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "`engine.budget`",
        "`arcbeam.engine.budget`",
        "`engine.budget.Pace`",
        "`engine.budget`, `.clocks`",
        "`engine.budget`:\n`.clocks`",
        "`budget.Pace`",
        "`Pace` and `Pace.after`",
        "`tests/engine/test_budget.py` and `tests/engine`",
        "`src/arcbeam/options.py --all`",
        "`pyproject.toml`",
        "`--shards`, `--shards=3`",
        "`beam.Row`, `GroupByKey`, `spark.speculation`, `a + b`, `manifests/<micro_batch>`",
        "```\n`engine.nothing`\n```",
    ],
)
def test_existing_names_pass(tree: Tree, text: str) -> None:
    assert list(violations(tree, text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "`engine.pace`",
        "`arcbeam.engine.pace`",
        "`engine.budget.Place`",
        "`engine.budget`, `.clock`",
        "`engine.budget`\n\n## Next\n`.clocks`",
        "`budget.Place`",
        "`Place`",
        "`Pace.before`",
        "`streaming.driver.driver`",
        "`spark.batch.rounds`",
        "`tests/engine/test_pace.py`",
        "`setup.toml`",
        "`--shard`",
    ],
)
def test_missing_names_are_reported(tree: Tree, text: str) -> None:
    assert len(list(violations(tree, text))) == 1


def test_line_numbers_count_fenced_lines(tree: Tree) -> None:
    assert [line for line, _ in violations(tree, "a\n```\nb\n```\n`engine.pace`\n")] == [5]


def test_dependencies_come_from_all_groups(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\ndependencies = ["click>=8"]\noptional-dependencies.dev = ["x[demo]", "moto[s3]>=5"]\n'
    )
    assert list(dependencies(tmp_path)) == ["click", "moto"]
