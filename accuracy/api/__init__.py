"""The public API behind `import accuracy`."""
