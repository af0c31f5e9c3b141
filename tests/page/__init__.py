"""Tests of the web page: its views without I/O, its answers over real HTTP, and the whole in a real Chromium."""
