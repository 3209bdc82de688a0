"""`oracle evaluate`: whether a trainer can be adopted for a scenario, at what cost, and where its limits are."""
