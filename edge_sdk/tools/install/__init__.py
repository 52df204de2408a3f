"""`edge-sdk install --systemd`: makes a device a service of systemd, with limits, and says each thing it does."""
