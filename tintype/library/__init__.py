"""The library's surface: `import tintype` gives the names of this room, and the commands call the same functions."""
