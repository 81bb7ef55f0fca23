"""What comes from outside as packages and images: locks, wheelhouses, licences, the container image."""
