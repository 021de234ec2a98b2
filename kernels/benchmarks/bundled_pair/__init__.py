"""How the bundled pair and traffic are made.  The demo only reads what these commands wrote."""
