flow connections list             # what's resolved + from where
flow connections check warehouse  # connect + report
