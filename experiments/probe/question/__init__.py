"""The questions, one a file, found on disk: each has `ask(subject) -> Answer`; its name is its file's."""
