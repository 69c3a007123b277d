"""Numba kernels: arithmetic on arrays, nothing else.

Kernels check nothing: shapes, dtypes, bounds, capacity and errors are owned by the thin layer that
calls them (``tree.py``, ``memory.py``). All are ``@njit(cache=True, nogil=True)``.
"""
