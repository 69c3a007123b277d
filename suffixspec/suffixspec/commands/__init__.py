"""The commands, one module each. A module's command is the function of the module's name."""
