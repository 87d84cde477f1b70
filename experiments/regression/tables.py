"""The numbers of README.md, from the published table."""

from experiments.published import Tables, chosen

TABLE = "regression/nvidia-h200"


def blocks(tables: Tables) -> dict[str, str]:
    rows = tables.rows(TABLE)
    measured, unsupported = (chosen(rows, status=each)["case_id"].nunique() for each in ("ok", "unsupported"))
    cells = (
        chosen(rows, status="ok", rank=-1).groupby(["variant", "precision", "dtype", "world_size", "tensor"]).ngroups
    )
    return {
        "cases": f"{measured:,} measured, {unsupported} unsupported, {cells} cells",
        "claims": tables.claims(TABLE),
    }
