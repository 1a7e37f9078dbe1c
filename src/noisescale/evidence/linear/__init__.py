"""Logistic and softmax regression: MAP, path over the prior precision, maximum of the evidence."""
