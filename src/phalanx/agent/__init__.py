"""The shell of one node: carries out effects, and turns what happens into events."""
