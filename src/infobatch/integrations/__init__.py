"""One file a framework; import the one you use. No algorithm in here."""
