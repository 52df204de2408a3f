"""The contracts of our own methods, one file each; both halves of a method import theirs from here."""
