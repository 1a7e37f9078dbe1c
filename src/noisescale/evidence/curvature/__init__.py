"""Hessian and Gauss-Newton matrix of the summed negative log-likelihood."""
