"""Whether data is as good and as fresh as promised."""
