"""HTML reports, exports and a local web server for finished and running audits."""
