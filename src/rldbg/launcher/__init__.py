"""The launchers of the AReaL debugging guide, kept under this package's name."""
