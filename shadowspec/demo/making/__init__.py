"""How the bundled pair and the bundled traffic were made.  Nothing here runs when the demo does."""
