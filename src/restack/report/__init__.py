"""Findings as charts, tables and one self-contained page."""
