"""Frontend, backbone, head: one file per family."""
