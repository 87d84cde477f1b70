"""The table of README.md, from the published answers."""

from experiments.published import Tables, markdown


def blocks(tables: Tables) -> dict[str, str]:
    rows = tables.csv("zoo/nvidia-h100.csv").fillna("")
    answered = rows[rows["label"] != "failed"]
    healthy, planted = answered[answered["fault"] == ""], answered[answered["fault"] != ""]
    measured = healthy[healthy["label"] != "not_measured"]
    pairs = sum(len(each.split()) for each in measured["dtypes"])
    of = measured.groupby("kernel", sort=False)
    accused = {kernel for kernel, same in of if same["is_bug"].any()}
    found = planted[planted["is_bug"].astype(bool) & planted["right_tensor"].astype(bool)]
    lines = [
        (kernel, same["package"].iloc[0], same["dtypes"].iloc[0].replace(" ", ", "), same["label"].iloc[0],
         same["x_floor"].iloc[0].replace(" ", ", "), f"{same['seconds'].min():.0f}")
        for kernel, same in of
    ]  # fmt: skip
    faults = [
        (fault, len(same), int((same["is_bug"].astype(bool) & same["right_tensor"].astype(bool)).sum()))
        for fault, same in planted.groupby("fault", sort=False)
    ]
    return {
        "kernels": markdown(["kernel", "package", "dtypes", "label", "error over the rounding floor", "s"], lines),
        "faults": markdown(["fault", "kernels", "found, with its tensor"], faults),
        "pairs": f"{pairs} (kernel, dtype) pairs",
        "accused": ", ".join(sorted(accused)) or "none",
        "found": f"{len(found)} of {len(planted)}",
    }
