"""The paper, re-measured: one module a section."""
