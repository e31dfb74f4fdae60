"""What times and measures the package, and others of its kind, on a machine at hand."""
