"""What a user can mend."""


class InputError(ValueError):
    """Bad input: one line that names the file, row or flag, and the way out."""
