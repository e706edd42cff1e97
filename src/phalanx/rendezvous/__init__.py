"""PURE: who takes part in a round, with which ranks, and what happens when somebody falls."""
