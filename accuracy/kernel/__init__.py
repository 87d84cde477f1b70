"""Local attention routines on one device, one a file; each states what it can do."""
