"""`python -m accuracy`: the same as the console command `accuracy`, also from a checkout without installation."""

from accuracy.cli.run import command

if __name__ == "__main__":
    command()
