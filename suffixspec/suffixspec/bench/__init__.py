"""Benchmarking generation: a workload, who serves it, how it arrives, and what was measured.

``datasets`` make a workload, a ``backend`` serves its requests (an engine in this process, or any
OpenAI-compatible server), ``load`` sends them, ``summary`` turns their times into figures, and
``report`` and ``plot`` show them. Metrics and their names are those of vLLM's ``bench serve``.
"""
