"""Makes tables and learning curves from run folders, over several seeds and environments, with intervals.

    python benchmark/report.py --runs 'runs/encoders/*/*' --by encoder --out docs/figures/encoders
    python benchmark/report.py --csv docs/figures/encoders.csv --by encoder --out docs/figures/encoders
    python benchmark/report.py --docs docs/*.md

The first command reads `eval.csv` and the TensorBoard events of the runs. It writes OUT.csv (a row for each run, seed
and evaluation) and, from that file alone, OUT.md (the table), OUT.png (greedy return over steps) and OUT_minutes.png
(over wall time). The second makes the table and the pictures again: the same CSV gives the same files. With --runs as
well, it adds their rows. The third puts tables into pages, between `<!-- report: FILE -->` and `<!-- end -->`.

--by names the argument that separates the groups. A cell of the table has the returns of one group on one environment
and twin. If its runs differ in more than their seed, a line says so. The number after ± is the standard deviation over
seeds (divided by their number). Interquartile means and intervals are rliable's (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264). With three seeds or fewer, the interquartile mean of one id is the mean, and tables
and pictures call it that.

--over also draws OUT_over.png, a map of returns by group and parameter; with --solved, of how many seeds reach a return
and after how many steps. Returns on popgym_arcade's ids are also normalised: 0 is the random policy, 1 the best
possible (benchmark/results). The table has the minutes until halfway. Several ids also give OUT_summary.md (ids by
groups), OUT_half_way.md (the minutes until halfway, ids by groups), OUT_normalised.png (all ids on one axis), and over
all ids together OUT_aggregate.md, OUT_aggregate.png (curves over steps and wall time, performance profiles) and
OUT_profile.csv. With --against, OUT_against.md has a line for each group: its interquartile mean on each twin, how far
that is above the others', the observability gap, and the speed.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from reporting.cells import can_be_normalised, make_cells
from reporting.pictures import draw_curves, draw_normalised, draw_over, draw_together, parameter
from reporting.rows import all_rows
from reporting.tables import summary, table, table_half_way
from reporting.together import profile_rows, put_together, table_against, table_together

from popgym_arcade.analysis.command_line import launch
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import PathName
from popgym_arcade.baselines.running.files import write_csv

EXTRAS = (  # written if they apply
    *("_minutes.png", "_over.png"),
    *("_summary.md", "_half_way.md", "_normalised.png", "_aggregate.md", "_aggregate.png", "_profile.csv"),
    "_against.md",
)


@dataclass(frozen=True)
class Args:
    runs: tuple[PathName, ...] = ()
    """run folders, or patterns that match some"""
    csv: tuple[PathName, ...] = ()
    """tables of earlier reports, instead of or in addition to runs; if a run is in several, the last one counts"""
    out: PathName = ""
    """path of the files to write, without their endings"""
    by: str = "memory"
    """argument of the runs that separates the groups, or: script; join several with +"""
    training: bool = False
    """add a column: mean return of the last 100 training episodes, as in CleanRL"""
    title: str = ""
    """title of the pictures"""
    over: str = ""
    """add a picture: last returns over a parameter of the environment, such as memory_length"""
    solved: float | None = None
    """show with --over how many seeds end with this return or more, and the steps they take to it"""
    against: tuple[str, ...] = ()
    """groups to compare every other one with, over all ids together"""
    docs: tuple[PathName, ...] = ()
    """pages to fill in, without other flags"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for flags that do not go together."""
        if bool(self.docs) == bool(self.runs or self.csv) or bool(self.docs) == bool(self.out):
            raise UserError("give --runs or --csv, and --out; or --docs alone")
        if self.solved is not None and not self.over:
            raise UserError("--solved shows returns over a parameter: name it with --over")
        return self


def filled(page: Path) -> str:
    """The page's text with the tables it asks for. Raises UserError for a missing table."""

    def place(match: re.Match) -> str:
        file = page.parent / match[2]
        if not file.is_file():
            raise UserError(f"{page} asks for {match[2]}, which does not exist")
        return f"{match[1]}\n{file.read_text()}\n{match[3]}"

    if not page.is_file():
        raise UserError(f"--docs {page}: no such page")
    return re.sub(r"(<!-- report: (\S+) -->\n).*?(<!-- end -->)", place, page.read_text(), flags=re.DOTALL)


def columns_of(rows: list[dict]) -> list[str]:
    """The columns of any of the rows, in the order in which they first appear."""
    return list(dict.fromkeys(name for row in rows for name in row))


def main(args: Args) -> None:
    """Writes the files of a report, or fills in pages. Raises UserError before anything is written."""
    args = args.checked()
    if args.docs:
        for page, text in [(Path(page), filled(Path(page))) for page in args.docs]:
            page.write_text(text)
        return
    rows = all_rows(args.runs, args.csv, args.by, args.training)
    cells = make_cells(rows, args.by)
    for cell in cells if args.over else ():
        parameter(cell, args.over)
    arcade = [cell for cell in cells if can_be_normalised(cell)]
    several = len({cell.task for cell in arcade}) > 1
    together, left_out = put_together(arcade) if several else ([], [])
    if args.against and not together:
        raise UserError("--against compares groups over all ids together: no group has every id")
    compared = table_against(together, args.by, args.against) if args.against else ""
    text = table(cells, args.by)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(Path(f"{out}.csv"), columns_of(rows), rows)
    Path(f"{out}.md").write_text(text)
    for ending in EXTRAS:  # of an earlier report
        Path(f"{out}{ending}").unlink(missing_ok=True)
    draw_curves(cells, Path(f"{out}.png"), args.title, args.by, over_minutes=False)
    draw_curves(cells, Path(f"{out}_minutes.png"), args.title, args.by, over_minutes=True)
    if args.over:
        draw_over(cells, Path(f"{out}_over.png"), args.title, args.over, args.solved)
    if several:
        Path(f"{out}_summary.md").write_text(summary(arcade))
        draw_normalised(arcade, Path(f"{out}_normalised.png"), args.title, args.by)
        if half_way := table_half_way(arcade):
            Path(f"{out}_half_way.md").write_text(half_way)
    if compared:
        Path(f"{out}_against.md").write_text(compared)
    if together:
        Path(f"{out}_aggregate.md").write_text(table_together(together, args.by))
        profiles = profile_rows(together, args.by)
        write_csv(Path(f"{out}_profile.csv"), columns_of(profiles), profiles)
        draw_together(together, Path(f"{out}_aggregate.png"), args.title, args.by)
    print(text, end="")
    for words in left_out:
        print(f"left out of the aggregate: {words}")


if __name__ == "__main__":
    launch(main, Args)
