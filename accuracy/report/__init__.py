"""Reads tables, writes report.html; never imports torch."""
