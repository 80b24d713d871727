# The table that ends configuration.
