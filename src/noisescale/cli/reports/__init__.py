"""Reports of a user's own runs: a chapter a kind of run, one page frame for all."""
