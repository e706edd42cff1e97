"""A bug that every rank has."""

settings = {"size": 1}
print(settings["x"])
