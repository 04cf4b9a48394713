"""The first run: two small models that ship with restack, how they are made, and the tour."""
