"""Recorded agent traces: formats, rendering, replay and reports."""
