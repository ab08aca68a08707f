"""Commands that help to find out what is wrong."""
