"""The page at ``/``: what is running, recent sessions, replay and tuning. Assets are shipped; the
page loads nothing from anywhere else."""
