"""What workers write, from many ranks to one screen and to files."""
