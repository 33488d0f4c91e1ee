"""Transforms: functions of functions. The door, spmdx/__init__.py, names what is public."""
