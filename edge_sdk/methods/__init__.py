"""Client halves of the methods, one file each, registered in the entry-point group `edge_sdk.methods`."""
