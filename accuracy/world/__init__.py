"""Where the ranks live; a variant talks to other ranks through its `World` alone."""
