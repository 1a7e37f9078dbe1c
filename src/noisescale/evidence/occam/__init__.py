"""The Occam factor, sum ln(1 + h/lambda), by method."""
