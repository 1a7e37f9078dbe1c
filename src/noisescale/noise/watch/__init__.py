"""The noise scale inside a training run: what one batch shows, averaged over updates."""
