"""The page that ``dltutorial report`` writes: one file a section, in the order of the course."""
