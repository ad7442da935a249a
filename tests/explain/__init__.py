"""Tests of explanations: the value, its sentence, the decision log and the command."""
