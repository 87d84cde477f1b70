"""One file per section of the report; each turns a run into views that the page renders."""
