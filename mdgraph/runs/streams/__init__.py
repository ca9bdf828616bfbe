"""Frames in a stream: from files, growing files and standard input, over devices and ranks."""
