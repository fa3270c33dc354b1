"""Files that are shipped to be copied: dashboards, alert rules, the project that `flow init` makes."""
