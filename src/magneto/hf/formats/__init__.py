"""Other people's formats, one file each: their configuration, their names, their layouts."""
