"""Many trials, run so that nothing is lost or done twice, and a store of what they gave."""
