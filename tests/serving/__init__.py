"""Tests of the server; a package, so that its conftest.py is not mistaken for that of another folder."""
