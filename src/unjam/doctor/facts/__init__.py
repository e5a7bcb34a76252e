"""Records of what the doctor observed. Nothing here decides what is wrong."""
