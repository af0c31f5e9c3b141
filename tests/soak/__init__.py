"""A queue that is published to, consumed and looked after for a long time: what is stored must stay bounded."""
