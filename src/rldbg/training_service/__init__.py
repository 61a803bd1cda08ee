"""A local stand-in for hosted training APIs: the Tinker and Weaver protocols over one model each, recording it all."""
