"""Where objects are, and when: contracts of residency, footprints, and the memory behind them."""
