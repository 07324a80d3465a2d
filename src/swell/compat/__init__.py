"""The interfaces of earlier systems, translated to swell; no formula lives here."""
