"""Text from a file of others, as text that a terminal may be given: no control characters, no escapes."""


def printable(text: str, instead: str = "?") -> str:
    """Every letter that cannot be printed replaced."""
    return "".join(letter if letter.isprintable() else instead for letter in text)
