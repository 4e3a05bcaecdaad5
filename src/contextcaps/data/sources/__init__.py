"""Where images and labels come from: one file or folder for each kind of source."""
