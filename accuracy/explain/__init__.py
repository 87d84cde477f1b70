"""Why is a result wrong? Observers that `experiment=diagnose` adds: hypotheses, traced steps, proven errors."""
