"""Which of the candidates? Filters drop, costs grade, pickers choose; a profile names a set of them."""
