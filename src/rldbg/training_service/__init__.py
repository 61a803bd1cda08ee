"""A local implementation of hosted training APIs: the Tinker and Weaver protocols, with everything recorded."""
