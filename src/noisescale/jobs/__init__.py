"""Nothing lost: a store of finished runs, and engines that execute runs into it."""
