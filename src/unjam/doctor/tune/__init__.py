"""`unjam tune`: measures settings of a loader one after another."""
